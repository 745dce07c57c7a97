package observe

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"code-execution-sandbox/internal/sandbox"
)

// Namespace begins the name of every metric of this service.
const Namespace = "code_execution_sandbox"

// NewRegistry returns a registry with the metrics of the process, of the Go
// runtime, and the build's version.
func NewRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: Namespace, Name: "build_info",
		Help: "1, labelled with what the server was built from.",
	}, []string{"version", "revision", "goversion"})
	build.WithLabelValues(version, revision(), runtime.Version()).Set(1)
	reg.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return reg
}

// revision is the commit that the binary was built from, "" when unknown.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}

type metrics struct {
	calls       *prometheus.CounterVec   // language, outcome
	inFlight    *prometheus.GaugeVec     // state
	duration    *prometheus.HistogramVec // language
	overhead    *prometheus.HistogramVec // language
	wait        prometheus.Histogram
	output      *prometheus.CounterVec // stream
	truncations *prometheus.CounterVec // stream
	oomKills    prometheus.Counter
	kills       *prometheus.CounterVec // reason
	cpu         prometheus.Counter
	memory      prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: Namespace, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: Namespace, Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &metrics{
		calls: counter("calls_total",
			"Calls that ended, by language and outcome: a status of the program, or a kind of error.", "language", "outcome"),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: Namespace, Name: "calls_in_flight",
			Help: "Calls waiting for a sandbox and calls running in one."}, []string{"state"}),
		duration: histogram("call_duration_seconds",
			"Wall time of programs, from the code's delivery to the end.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, "language"),
		overhead: histogram("call_overhead_seconds",
			"What the server added to a program's own time, without the wait for a slot.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}, "language"),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: Namespace, Name: "queue_wait_seconds",
			Help:    "Wait for a slot, also of calls that were turned away.",
			Buckets: []float64{.001, .01, .1, .5, 1, 2.5, 5, 10, 30, 60}}),
		output:      counter("output_bytes_total", "Bytes that programs printed, also those not kept.", "stream"),
		truncations: counter("output_truncations_total", "Streams of which not everything was kept.", "stream"),
		oomKills: prometheus.NewCounter(prometheus.CounterOpts{Namespace: Namespace, Name: "oom_kills_total",
			Help: "Calls in which the memory limit killed a process."}),
		kills: counter("kills_total", "Programs that were ended before they ended by themselves, by reason.", "reason"),
		cpu: prometheus.NewCounter(prometheus.CounterOpts{Namespace: Namespace, Name: "cpu_seconds_total",
			Help: "Processor time of programs."}),
		memory: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: Namespace, Name: "memory_peak_bytes",
			Help:    "Peak memory of programs.",
			Buckets: prometheus.ExponentialBuckets(1<<20, 2, 13)}), // 1 MiB to 4 GiB
	}
	// The series exist from the start, so that a rate can be told from nothing.
	for _, state := range []string{"queued", "running"} {
		m.inFlight.WithLabelValues(state)
	}
	for _, reason := range killReasons {
		m.kills.WithLabelValues(reason)
	}
	for _, lang := range sandbox.Languages() {
		for _, outcome := range outcomes {
			m.calls.WithLabelValues(string(lang), outcome)
		}
		m.duration.WithLabelValues(string(lang))
		m.overhead.WithLabelValues(string(lang))
	}
	for _, stream := range []string{"stdout", "stderr"} {
		m.output.WithLabelValues(stream)
		m.truncations.WithLabelValues(stream)
	}
	return m
}

// killReasons names the ends that are not the program's own doing.
var killReasons = map[sandbox.Status]string{
	sandbox.StatusTimedOut: "time_limit", sandbox.StatusOutOfMemory: "memory_limit", sandbox.StatusCanceled: "canceled",
}

// outcomes are the values of the label: see outcome.
var outcomes = []string{
	string(sandbox.StatusExited), string(sandbox.StatusSignaled), string(sandbox.StatusTimedOut),
	string(sandbox.StatusOutOfMemory), string(sandbox.StatusCanceled),
	"invalid", "busy", "unavailable", "internal",
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.inFlight, m.duration, m.overhead, m.wait, m.output, m.truncations, m.oomKills, m.kills, m.cpu, m.memory}
}

// enter counts a call as queued, and as running once req.Started says so. The
// function returned takes it out again.
func (m *metrics) enter(req *sandbox.Request) (leave func()) {
	var (
		mu    sync.Mutex
		state = "queued"
		move  = func(to string) {
			mu.Lock()
			defer mu.Unlock()
			if state != "" {
				m.inFlight.WithLabelValues(state).Dec()
				if state = to; to != "" {
					m.inFlight.WithLabelValues(to).Inc()
				}
			}
		}
	)
	m.inFlight.WithLabelValues(state).Inc()
	started := req.Started
	req.Started = func() {
		move("running")
		if started != nil {
			started()
		}
	}
	return func() { move("") }
}

// count adds a call that ended.
func (m *metrics) count(req sandbox.Request, outcome string, result *sandbox.Result, err error, total time.Duration) {
	lang := language(req.Language)
	m.calls.WithLabelValues(lang, outcome).Inc()
	if busy, ok := errors.AsType[*sandbox.BusyError](err); ok {
		m.wait.Observe(busy.Waited.Seconds())
	}
	if result == nil {
		return
	}
	m.wait.Observe(result.Queued.Seconds())
	m.duration.WithLabelValues(lang).Observe(result.Duration.Seconds())
	m.overhead.WithLabelValues(lang).Observe((total - result.Queued - result.Duration).Seconds())
	m.cpu.Add(max(result.CPUTime, 0).Seconds())
	m.memory.Observe(float64(result.PeakMemory))
	if reason, killed := killReasons[result.Status]; killed {
		m.kills.WithLabelValues(reason).Inc()
	}
	if result.OOMKilled {
		m.oomKills.Inc()
	}
	m.stream("stdout", result.StdoutBytes, len(result.Stdout))
	m.stream("stderr", result.StderrBytes, len(result.Stderr))
}

func (m *metrics) stream(name string, printed int64, kept int) {
	m.output.WithLabelValues(name).Add(float64(printed))
	if printed > int64(kept) {
		m.truncations.WithLabelValues(name).Inc()
	}
}
