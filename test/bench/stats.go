package main

import (
	"math"
	"slices"
	"time"
)

// summary describes the latencies of one contender in one situation. Times are
// milliseconds.
type summary struct {
	Way      string  `json:"way"`
	Language string  `json:"language"`
	Clients  int     `json:"clients"`
	Calls    int     `json:"calls"`
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P99      float64 `json:"p99_ms"`
	// PerSecond is the rate of calls, 0 where calls were made one at a time.
	PerSecond float64 `json:"calls_per_second,omitempty"`
	// CPU is the processor time of the whole machine per call, clients
	// included: true where nothing else ran.
	CPU float64 `json:"machine_cpu_ms_per_call,omitempty"`
	// Samples are the latencies in the order of the calls' ends.
	Samples []float64 `json:"samples_ms"`
}

// add takes latencies in and brings the percentiles up to date.
func (s *summary) add(took ...time.Duration) {
	for _, d := range took {
		s.Samples = append(s.Samples, ms(d))
	}
	s.Calls = len(s.Samples)
	s.P50, s.P90, s.P99 = percentile(s.Samples, 50), percentile(s.Samples, 90), percentile(s.Samples, 99)
}

func ms(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e3 }

// percentile is the smallest sample that at least p percent do not exceed
// (nearest rank), 0 for no samples.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// ratio is a/b, 0 where b is unknown.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
