package observe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"code-execution-sandbox/internal/sandbox"
)

type executorFunc func(context.Context, sandbox.Request) (*sandbox.Result, error)

func (f executorFunc) Execute(ctx context.Context, r sandbox.Request) (*sandbox.Result, error) {
	return f(ctx, r)
}

func returning(r *sandbox.Result, err error) executorFunc {
	return func(_ context.Context, req sandbox.Request) (*sandbox.Result, error) {
		req.Started()
		return r, err
	}
}

// observed returns an Executor in front of next, and its log and registry.
func observed(next sandbox.Executor, level slog.Level) (*Executor, *bytes.Buffer, *prometheus.Registry) {
	var log bytes.Buffer
	reg := prometheus.NewPedanticRegistry()
	return New(next, Options{
		Logger:     slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level})),
		Registerer: reg,
		Limits:     sandbox.Limits{MaxOutputBytes: 13, Memory: 1 << 30, CPUs: 1.5, PIDs: 128, Tmp: 64 << 20},
	}), &log, reg
}

func request() sandbox.Request {
	return sandbox.Request{ID: "id1", Language: sandbox.Python, Code: "SECRET_CODE", Stdin: []byte("SECRET_STDIN"), Timeout: 10 * time.Second}
}

func result() *sandbox.Result {
	return &sandbox.Result{
		Status: sandbox.StatusSignaled, ExitCode: 139, Signal: 11,
		Stdout: []byte("SECRET_STDOUT"), StdoutBytes: 5000, StdoutHead: 5,
		Stderr: []byte("SECRET_STDERR"), StderrBytes: 13, StderrHead: 13,
		OOMKilled: true, Timeout: 10 * time.Second, Duration: 1500 * time.Millisecond, Queued: 20 * time.Millisecond,
		CPUTime: 700 * time.Millisecond, PeakMemory: 12 << 20,
	}
}

// events parses the log.
func events(t *testing.T, log *bytes.Buffer) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(log.String()) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func TestAuditEvent(t *testing.T) {
	e, log, _ := observed(returning(result(), nil), slog.LevelInfo)
	ctx := WithCaller(t.Context(), Caller{Principal: "miranda", Address: "10.0.0.1:5", Agent: strings.Repeat("ž", 200), Protocol: "2026-07-28"})
	got, err := e.Execute(ctx, request())
	if err != nil || got.ExitCode != 139 {
		t.Errorf("got %+v, %v", got, err)
	}
	all := events(t, log)
	if len(all) != 1 {
		t.Fatalf("%d events, want 1", len(all))
	}
	event := all[0]
	for key, want := range map[string]any{
		"level": "INFO", "msg": "call ended", "id": "id1", "outcome": "signaled", "language": "python",
		"code_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("SECRET_CODE"))),
		"code_bytes":  11.0, "stdin_bytes": 12.0, "exit_code": 139.0, "signal": 11.0, "oom_killed": true, "timeout_ms": 10_000.0,
		"queued_ms": 20.0, "duration_ms": 1500.0, "cpu_ms": 700.0, "peak_memory_bytes": float64(12 << 20),
		"stdout_bytes": 5000.0, "stderr_bytes": 13.0, "truncated": true,
		"stdout_cut_bytes": 4987.0, "stderr_cut_bytes": 0.0,
	} {
		if event[key] != want {
			t.Errorf("%s is %v, want %v", key, event[key], want)
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(event["time"])); err != nil || time.Since(at) > time.Minute {
		t.Errorf("the time is %v: %v", event["time"], err)
	}
	if total, ok := event["total_ms"].(float64); !ok || total < 0 {
		t.Errorf("total_ms is %v", event["total_ms"])
	}
	want := map[string]any{"memory_bytes": float64(1 << 30), "cpus": 1.5, "pids": 128.0, "tmp_bytes": float64(64 << 20), "kept_bytes": 13.0}
	if limits, _ := event["limits"].(map[string]any); !maps.Equal(limits, want) {
		t.Errorf("the limits are %v, want %v", limits, want)
	}
	caller, _ := event["caller"].(map[string]any)
	if keys := slices.Sorted(maps.Keys(caller)); !slices.Equal(keys, []string{"address", "agent", "principal", "protocol"}) {
		t.Errorf("the caller has %v", keys)
	}
	if agent, _ := caller["agent"].(string); agent != strings.Repeat("ž", 64)+"…" {
		t.Errorf("the agent is %q", agent)
	}
	if strings.Contains(log.String(), "SECRET") {
		t.Errorf("%s holds code or output", log)
	}
}

func TestDebugEvents(t *testing.T) {
	e, log, _ := observed(returning(result(), nil), slog.LevelDebug)
	if _, err := e.Execute(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	all := events(t, log)
	if len(all) != 3 {
		t.Fatalf("%d events, want 3", len(all))
	}
	for i, want := range []map[string]any{
		{"msg": "program of call", "level": "DEBUG", "id": "id1", "language": "python", "code": "SECRET_CODE", "stdin": "SECRET_STDIN"},
		{"msg": "call ended", "level": "INFO", "id": "id1"},
		{"msg": "output of call", "level": "DEBUG", "id": "id1", "stdout": "SECRET_STDOUT", "stderr": "SECRET_STDERR"},
	} {
		for key, value := range want {
			if all[i][key] != value {
				t.Errorf("event %d: %s is %v, want %v", i, key, all[i][key], value)
			}
		}
	}
}

func TestOutcomes(t *testing.T) {
	for _, test := range []struct {
		result *sandbox.Result
		err    error
		want   string
	}{
		{&sandbox.Result{Status: sandbox.StatusExited}, nil, "exited"},
		{&sandbox.Result{Status: sandbox.StatusTimedOut}, nil, "timed_out"},
		{&sandbox.Result{Status: sandbox.StatusOutOfMemory}, nil, "out_of_memory"},
		{&sandbox.Result{Status: sandbox.StatusCanceled}, nil, "canceled"},
		{nil, &sandbox.InvalidError{Argument: "code"}, "invalid"},
		{nil, fmt.Errorf("admit: %w", &sandbox.BusyError{Waited: time.Second}), "busy"},
		{nil, &sandbox.NotReadyError{Check: "image"}, "unavailable"},
		{nil, fmt.Errorf("%w: x", sandbox.ErrInternal), "internal"},
		{nil, errors.New("x"), "internal"},
		{nil, fmt.Errorf("admit: %w", context.Canceled), "internal"}, // nobody ended the call
		{nil, errGone, "canceled"},
	} {
		e, log, reg := observed(returning(test.result, test.err), slog.LevelInfo)
		ctx, cancel := context.WithCancelCause(t.Context())
		if errors.Is(test.err, errGone) {
			cancel(errGone)
		}
		if _, err := e.Execute(ctx, request()); !errors.Is(err, test.err) {
			t.Errorf("got %v, want %v", err, test.err)
		}
		cancel(nil)
		event := events(t, log)[0]
		if event["outcome"] != test.want {
			t.Errorf("%v: outcome is %v, want %v", test.err, event["outcome"], test.want)
		}
		if test.want == "invalid" { // the words may repeat what the caller sent
			if event["invalid_argument"] != "code" || event["err"] != nil {
				t.Errorf("invalid_argument is %v and err %v", event["invalid_argument"], event["err"])
			}
		} else if test.err != nil && event["err"] != test.err.Error() {
			t.Errorf("err is %v, want %v", event["err"], test.err)
		}
		if errors.Is(test.err, errGone) && event["canceled_because"] != "gone" {
			t.Errorf("canceled_because is %v", event["canceled_because"])
		}
		want := `code_execution_sandbox_calls_total{language="python",outcome="` + test.want + `"} 1`
		if got := counted(t, reg, "code_execution_sandbox_calls_total"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

var errGone = errors.New("gone")

func TestMetrics(t *testing.T) {
	e, _, reg := observed(returning(result(), nil), slog.LevelInfo)
	for range 2 {
		if _, err := e.Execute(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
	}
	e.Refused(t.Context(), sandbox.Request{ID: "x", Language: "SECRET_LANGUAGE"}, &sandbox.InvalidError{Argument: "language"})
	for name, want := range map[string]string{
		"calls_total": `
			code_execution_sandbox_calls_total{language="other",outcome="invalid"} 1
			code_execution_sandbox_calls_total{language="python",outcome="signaled"} 2`,
		"output_bytes_total": `
			code_execution_sandbox_output_bytes_total{stream="stderr"} 26
			code_execution_sandbox_output_bytes_total{stream="stdout"} 10000`,
		"output_truncations_total": `
			code_execution_sandbox_output_truncations_total{stream="stderr"} 0
			code_execution_sandbox_output_truncations_total{stream="stdout"} 2`,
		"kills_total": `
			code_execution_sandbox_kills_total{reason="canceled"} 0
			code_execution_sandbox_kills_total{reason="memory_limit"} 0
			code_execution_sandbox_kills_total{reason="time_limit"} 0`,
		"oom_kills_total": `
			code_execution_sandbox_oom_kills_total 2`,
		"cpu_seconds_total": `
			code_execution_sandbox_cpu_seconds_total 1.4`,
		"calls_in_flight": `
			code_execution_sandbox_calls_in_flight{state="queued"} 0
			code_execution_sandbox_calls_in_flight{state="running"} 0`,
	} {
		list := samples
		if name == "calls_total" {
			list = counted
		}
		if got := list(t, reg, "code_execution_sandbox_"+name); got != strings.ReplaceAll(strings.TrimSpace(want), "\t", "") {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	for _, f := range families {
		if f.GetName() == "code_execution_sandbox_call_overhead_seconds" && f.GetMetric()[1].GetHistogram().GetSampleCount() != 2 {
			t.Errorf("%v has not 2 samples for python", f)
		}
	}
}

// counted writes what is not zero; every series exists from the start.
func counted(t *testing.T, reg prometheus.Gatherer, name string) string {
	t.Helper()
	return strings.Join(slices.DeleteFunc(strings.Split(samples(t, reg, name), "\n"), func(line string) bool {
		return strings.HasSuffix(line, " 0")
	}), "\n")
}

// Each end that is not a program's own doing is counted as a kill.
func TestKills(t *testing.T) {
	for status, want := range map[sandbox.Status]string{
		sandbox.StatusExited: "", sandbox.StatusSignaled: "",
		sandbox.StatusTimedOut: "time_limit", sandbox.StatusOutOfMemory: "memory_limit", sandbox.StatusCanceled: "canceled",
	} {
		e, _, reg := observed(returning(&sandbox.Result{Status: status}, nil), slog.LevelInfo)
		if _, err := e.Execute(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		if want != "" {
			want = `code_execution_sandbox_kills_total{reason="` + want + `"} 1`
		}
		if got := counted(t, reg, "code_execution_sandbox_kills_total"); got != want {
			t.Errorf("%s: got %q, want %q", status, got, want)
		}
	}
}

// samples writes the counters and gauges of a metric as Prometheus does.
func samples(t *testing.T, reg prometheus.Gatherer, name string) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			line := name
			if len(labels) > 0 {
				line += "{" + strings.Join(labels, ",") + "}"
			}
			lines = append(lines, fmt.Sprintf("%s %v", line, m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	return strings.Join(lines, "\n")
}

func TestInFlight(t *testing.T) {
	var e *Executor
	var reg *prometheus.Registry
	started := false
	state := func(queued, running int) {
		t.Helper()
		want := fmt.Sprintf("code_execution_sandbox_calls_in_flight{state=\"queued\"} %d\ncode_execution_sandbox_calls_in_flight{state=\"running\"} %d", queued, running)
		if got := samples(t, reg, "code_execution_sandbox_calls_in_flight"); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	e, _, reg = observed(executorFunc(func(_ context.Context, req sandbox.Request) (*sandbox.Result, error) {
		state(1, 0)
		req.Started()
		state(0, 1)
		req.Started()
		state(0, 1)
		return result(), nil
	}), slog.LevelInfo)
	req := request()
	req.Started = func() { started = true }
	if _, err := e.Execute(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	state(0, 0)
	if !started {
		t.Error("the caller was not told of the start")
	}
}

// A panic goes on its way, and is told of.
func TestPanic(t *testing.T) {
	e, log, reg := observed(executorFunc(func(context.Context, sandbox.Request) (*sandbox.Result, error) { panic("x") }), slog.LevelInfo)
	func() {
		defer func() {
			if recover() != "x" {
				t.Error("the panic was lost")
			}
		}()
		_, _ = e.Execute(t.Context(), request())
	}()
	if event := events(t, log)[0]; event["outcome"] != "internal" || event["err"] != "panic" {
		t.Errorf("got %v", event)
	}
	if got := samples(t, reg, "code_execution_sandbox_calls_in_flight"); strings.Contains(got, "1") {
		t.Errorf("got %s", got)
	}
}

func TestNewRegistry(t *testing.T) {
	reg := NewRegistry("1.2.3")
	if got := samples(t, reg, "code_execution_sandbox_build_info"); !strings.Contains(got, `version="1.2.3"`) || !strings.Contains(got, `goversion="go1.`) {
		t.Errorf("got %s", got)
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if samples(t, reg, name) == "" {
			t.Errorf("no %s", name)
		}
	}
}
