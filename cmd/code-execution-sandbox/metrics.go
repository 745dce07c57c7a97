package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/observe"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

// newStages registers the time spent in each stage of a sandbox's life, and
// returns what observes it.
func newStages(reg prometheus.Registerer) func(stage string, took time.Duration) {
	stages := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: observe.Namespace, Name: "stage_seconds",
		Help:    "Time spent in each stage of a sandbox's life.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
	}, []string{"stage"})
	for _, stage := range []string{runner.StageQueue, runner.StagePrepare, runner.StageRun, runner.StageDispose} {
		stages.WithLabelValues(stage)
	}
	reg.MustRegister(stages)
	return func(stage string, took time.Duration) { stages.WithLabelValues(stage).Observe(took.Seconds()) }
}

// state shows what a runner does and has seen. It is read when it is asked for,
// so that all values are of one moment.
type state struct {
	load  func() runner.Load
	stats func() runner.Stats
	cfg   config.Config
}

var _ prometheus.Collector = state{}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(observe.Namespace, "", name), help, labels, nil)
}

var (
	descReady        = describe("ready", "Whether programs can run, as /healthz says.")
	descNotReady     = describe("not_ready", "1 for the check that fails, else 0.", "check")
	descContainerd   = describe("containerd_up", "Whether containerd answers.")
	descRestarts     = describe("containerd_restarts_total", "How often containerd was seen to have been restarted.")
	descSlots        = describe("slots", "Programs that may run at one time.")
	descTaken        = describe("slots_taken", "Programs that run now.")
	descCapacity     = describe("queue_capacity", "Calls that may wait for a slot.")
	descQueue        = describe("queue_length", "Calls that wait for a slot.")
	descQuarantined  = describe("quarantined_sandboxes", "Sandboxes that could not be removed.")
	descPrepared     = describe("prepared_sandboxes", "Sandboxes that wait for a program.", "language")
	descPoolSize     = describe("pool_size", "Sandboxes that shall wait for a program.", "language")
	descPoolAge      = describe("pool_oldest_age_seconds", "Age of the oldest sandbox that waits for a program.", "language")
	descPoolRequests = describe("pool_requests_total", "Sandboxes asked for, by whether one stood prepared (hit) or had to be made (miss).", "language", "result")
	descSwept        = describe("swept_total", "Leftovers that the janitor found and removed, by kind.", "kind")
)

// checks are the values of sandbox.NotReadyError.Check.
var checks = []string{"containerd", "image", "selftest", "host", "shutdown"}

// Describe implements prometheus.Collector.
func (s state) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s state) Collect(ch chan<- prometheus.Metric) {
	load, stats := s.load(), s.stats()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	truth := map[bool]float64{true: 1}
	gauge(descReady, truth[stats.NotReady == ""])
	for _, check := range checks {
		gauge(descNotReady, truth[stats.NotReady == check], check)
	}
	gauge(descContainerd, truth[stats.ContainerdUp])
	counter(descRestarts, stats.ContainerdRestarts)
	gauge(descSlots, float64(s.cfg.Sandbox.MaxConcurrent))
	gauge(descTaken, float64(load.Running))
	gauge(descCapacity, float64(s.cfg.Queue.MaxWaiting))
	gauge(descQueue, float64(load.Queued))
	gauge(descQuarantined, float64(load.Quarantined))
	size := map[sandbox.Language]int{sandbox.Python: s.cfg.Pool.Python, sandbox.Bash: s.cfg.Pool.Bash}
	for _, lang := range sandbox.Languages() {
		name := string(lang)
		gauge(descPrepared, float64(load.Prepared[lang]), name)
		gauge(descPoolSize, float64(size[lang]), name)
		gauge(descPoolAge, stats.Oldest[lang].Seconds(), name)
		counter(descPoolRequests, stats.Hits[lang], name, "hit")
		counter(descPoolRequests, stats.Misses[lang], name, "miss")
	}
	for kind, n := range map[string]int{
		"container": stats.Swept.Containers, "shim": stats.Swept.Shims, "cgroup": stats.Swept.Cgroups,
		"directory": stats.Swept.Directories, "view": stats.Swept.Snapshots,
	} {
		counter(descSwept, n, kind)
	}
}
