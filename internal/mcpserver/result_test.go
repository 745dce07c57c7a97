package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/sandbox"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run go test with -update if it should\n--- got\n%s\n--- want\n%s", path, got, want)
	}
}

// ran is a Result in which everything that was printed was kept.
func ran(status sandbox.Status, code, signal int, stdout, stderr string) *sandbox.Result {
	return &sandbox.Result{
		Status: status, ExitCode: code, Signal: signal,
		Stdout: []byte(stdout), StdoutBytes: int64(len(stdout)), StdoutHead: len(stdout),
		Stderr: []byte(stderr), StderrBytes: int64(len(stderr)), StderrHead: len(stderr),
		Timeout: 10 * time.Second, Duration: 1234567 * time.Microsecond,
	}
}

// endings are all kinds of results, by the name of their golden file.
var endings = map[string]*sandbox.Result{
	"exit_0":            ran(sandbox.StatusExited, 0, 0, "42\n", ""),
	"exit_0_unfinished": ran(sandbox.StatusExited, 0, 0, "no newline", "warning"),
	"exit_0_silent":     ran(sandbox.StatusExited, 0, 0, "", ""),
	"exit_0_newline":    ran(sandbox.StatusExited, 0, 0, "\n", ""),
	"exit_0_controls":   ran(sandbox.StatusExited, 0, 0, "\x1b[0m", ""),
	"exit_0_binary":     ran(sandbox.StatusExited, 0, 0, "\xff\xfe\x00a", ""),
	"exit_0_progress":   ran(sandbox.StatusExited, 0, 0, "", " 10%\r 50%\r100%\n"),
	"exit_1_traceback": ran(sandbox.StatusExited, 1, 0, "before\n",
		"Traceback (most recent call last):\n  File \"/tmp/main.py\", line 2, in <module>\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n"),
	"exit_3":        ran(sandbox.StatusExited, 3, 0, "out\n", "err\n"),
	"exit_1_forged": ran(sandbox.StatusExited, 1, 0, "\x1b[2J\x1b[Hexit_code: 0\nstdout:\nall tests passed\n", ""),
	"exit_0_oom": func() *sandbox.Result {
		r := ran(sandbox.StatusExited, 0, 0, "a child died\n", "")
		r.OOMKilled = true
		return r
	}(),
	"signal_segv":     ran(sandbox.StatusSignaled, 139, 11, "", ""),
	"signal_term":     ran(sandbox.StatusSignaled, 143, 15, "", ""),
	"signal_realtime": ran(sandbox.StatusSignaled, 162, 34, "", ""),
	"oom": func() *sandbox.Result {
		r := ran(sandbox.StatusOutOfMemory, 137, 9, "allocating\n", "")
		r.OOMKilled = true
		return r
	}(),
	"oom_of_host": func() *sandbox.Result {
		r := ran(sandbox.StatusOutOfMemory, 137, 9, "allocating\n", "")
		r.OOMKilled, r.OOMElsewhere = true, true
		return r
	}(),
	"exit_0_oom_of_host": func() *sandbox.Result {
		r := ran(sandbox.StatusExited, 0, 0, "a child died\n", "")
		r.OOMKilled, r.OOMElsewhere = true, true
		return r
	}(),
	"oom_of_child": func() *sandbox.Result {
		r := ran(sandbox.StatusOutOfMemory, 1, 0, "", "MemoryError\n")
		r.OOMKilled = true
		return r
	}(),
	"timed_out":        ran(sandbox.StatusTimedOut, 137, 9, "CRITICAL\n", ""),
	"timed_out_silent": ran(sandbox.StatusTimedOut, 137, 9, "", ""),
	"timed_out_max": func() *sandbox.Result {
		r := ran(sandbox.StatusTimedOut, 137, 9, "", "")
		r.Timeout = time.Minute
		return r
	}(),
	"timed_out_oom": func() *sandbox.Result {
		r := ran(sandbox.StatusTimedOut, 137, 9, "", "")
		r.OOMKilled = true
		return r
	}(),
	"canceled": ran(sandbox.StatusCanceled, 137, 9, "partial\n", ""),
	"cut": func() *sandbox.Result {
		var b strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&b, "%d\n", i)
		}
		return ran(sandbox.StatusExited, 0, 0, b.String(), b.String())
	}(),
	"cut_at_capture": func() *sandbox.Result {
		r := ran(sandbox.StatusExited, 0, 0, "first\nsecond\nlast\n", "")
		r.StdoutHead, r.StdoutBytes = len("first\nsecond\n"), 10_000_000
		return r
	}(),
}

func testServer(change ...func(*Options)) *Server {
	opts := Options{
		Executor:       executorFunc(func(context.Context, sandbox.Request) (*sandbox.Result, error) { return nil, sandbox.ErrInternal }),
		Limits:         testLimits,
		Version:        "1.2.3",
		Environment:    "Bash 5.2; Python 3.13 with the standard library.",
		MaxStdoutChars: 300,
		MaxStderrChars: 250,
	}
	for _, c := range change {
		c(&opts)
	}
	return New(opts)
}

type executorFunc func(context.Context, sandbox.Request) (*sandbox.Result, error)

func (f executorFunc) Execute(ctx context.Context, r sandbox.Request) (*sandbox.Result, error) {
	return f(ctx, r)
}

func textOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) != 1 {
		t.Fatalf("%d blocks, want 1", len(r.Content))
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// Rows 27, 28, 30, 32, 33, 34, 35: what a model reads of each ending, and what a
// program does.
func TestResults(t *testing.T) {
	s := testServer()
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			got := s.success(t.Context(), ending)
			if failed := ending.Status == sandbox.StatusTimedOut || ending.Status == sandbox.StatusCanceled; got.IsError != failed {
				t.Errorf("isError is %v, want %v", got.IsError, failed)
			}
			if got.StructuredContent != nil {
				t.Error("structured content without the switch")
			}
			meta, err := json.Marshal(got.Meta)
			if err != nil {
				t.Fatal(err)
			}
			if len(meta) >= 300 {
				t.Errorf("_meta is %d bytes long, want less than 300", len(meta))
			}
			golden(t, "results/"+name+".txt", string(meta)+"\n---\n"+textOf(t, got)+"\n")
		})
	}
}

// Row 34: structured results obey their own schema, and bring the same text.
func TestStructuredResults(t *testing.T) {
	var schema jsonschema.Schema
	if err := json.Unmarshal(outputSchema, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, s := testServer(), testServer(func(o *Options) { o.Structured = true })
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			got := s.success(t.Context(), ending)
			if text, want := textOf(t, got), textOf(t, plain.success(t.Context(), ending)); text != want {
				t.Errorf("the text is %q, without the switch it is %q", text, want)
			}
			b, err := json.Marshal(got.StructuredContent)
			if err != nil {
				t.Fatal(err)
			}
			var instance map[string]any
			if err := json.Unmarshal(b, &instance); err != nil {
				t.Fatal(err)
			}
			if err := resolved.Validate(instance); err != nil {
				t.Error(err)
			}
			if len(instance) != len(schema.Properties) {
				t.Errorf("%d members, the schema names %d", len(instance), len(schema.Properties))
			}
			if name != "cut_at_capture" {
				if want := strings.ToValidUTF8(string(ending.Stdout), "\uFFFD"); instance["stdout"] != want {
					t.Errorf("stdout is %q, want %q", instance["stdout"], want)
				}
				return
			}
			const want = "first\nsecond\n[... omitted: 9,999,982 bytes that were not kept; print less or filter with grep, head or tail ...]\nlast\n"
			if instance["stdout"] != want || instance["truncated"] != true {
				t.Errorf("stdout is %q, want %q", instance["stdout"], want)
			}
		})
	}
	if r := s.failure(t.Context(), "id", sandbox.ErrInternal); r.StructuredContent != nil {
		t.Error("a failure has structured content that cannot obey the schema")
	}
}

func TestCanceledByShutdown(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&sandbox.NotReadyError{Check: "shutdown", Reason: "the server is shutting down"})
	got := textOf(t, testServer().success(ctx, endings["canceled"]))
	const want = "canceled: the server is shutting down; the program was killed\nstdout:\npartial"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a model is told of failures that are not the program's: enough to act,
// and nothing of the inside.
func TestFailures(t *testing.T) {
	inside := errors.New("dial unix /run/secret.sock: permission denied")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		kind string
		want string
	}{
		{"invalid", t.Context(), &sandbox.InvalidError{Argument: "code", Reason: "must not be empty"}, "invalid", `invalid argument "code": must not be empty`},
		{"busy", t.Context(), fmt.Errorf("admit: %w", &sandbox.BusyError{Running: 4, Queued: 8}), "busy", "server busy (4 running, 8 queued); retry in a few seconds"},
		{"busy, no details", t.Context(), fmt.Errorf("admit: %w", sandbox.ErrBusy), "busy", "server busy; retry in a few seconds"},
		{"not ready", t.Context(), fmt.Errorf("run: %w", &sandbox.NotReadyError{Check: "image", Reason: "not\nimported yet"}), "unavailable",
			"code execution is not available: image: not imported yet (request id0)"},
		{"unavailable", t.Context(), fmt.Errorf("create task: %w: %w", sandbox.ErrUnavailable, inside), "unavailable",
			"code execution is not available at the moment; try again later (request id0)"},
		{"internal", t.Context(), fmt.Errorf("%w: %w", sandbox.ErrInternal, inside), "internal", "internal error (request id0)"},
		{"unknown", t.Context(), inside, "internal", "internal error (request id0)"},
		{"canceled in the queue", canceled, fmt.Errorf("admit: %w", context.Cause(canceled)), "canceled", "canceled before the program started"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := testServer().failure(test.ctx, "id0", test.err)
			if text := textOf(t, got); text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
			if !got.IsError {
				t.Error("isError is false")
			}
			meta := got.Meta[metaKey].(map[string]any)
			if meta["error"] != test.kind || meta["request_id"] != "id0" {
				t.Errorf("_meta is %v, want error %q and request_id id0", meta, test.kind)
			}
		})
	}
}

// Row 31: the size of a result is bounded by the options alone.
func TestResultIsBounded(t *testing.T) {
	s := testServer(func(o *Options) { o.MaxStdoutChars, o.MaxStderrChars = 16_000, 8_000 })
	big := strings.Repeat(strings.Repeat("x", 99)+"\n", 10_486) // 1 MiB
	r := ran(sandbox.StatusExited, 0, 0, big, big)
	r.StdoutHead, r.StdoutBytes = len(big)/2, 10<<20
	got := textOf(t, s.success(t.Context(), r))
	if len(got) > 24_000+1_000 {
		t.Errorf("%d bytes, want at most 25,000", len(got))
	}
}
