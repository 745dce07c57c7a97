package mcpserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"code-execution-sandbox/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns a client of s over a pipe.
func connect(t *testing.T, s *Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	there, here := mcp.NewInMemoryTransports()
	server, err := s.current.Load().Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Wait()
	})
	return client
}

func args(code string) map[string]any { return map[string]any{"language": "python", "code": code} }

func TestCall(t *testing.T) {
	var got sandbox.Request
	client := connect(t, testServer(func(o *Options) {
		o.Executor = executorFunc(func(_ context.Context, r sandbox.Request) (*sandbox.Result, error) {
			got = r
			r.Started()
			return ran(sandbox.StatusExited, 0, 0, "42\n", ""), nil
		})
	}), nil)
	result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{
		"language": "python", "code": "print(6*7)", "timeout_seconds": "5", "stdin": "in", "toolCallId": "n8n",
	}})
	if err != nil {
		t.Fatal(err)
	}
	if text := textOf(t, result); result.IsError || text != "exit_code: 0\nstdout:\n42" {
		t.Errorf("got isError %v, %q", result.IsError, text)
	}
	if got.Language != sandbox.Python || got.Code != "print(6*7)" || got.Timeout != 5*time.Second || string(got.Stdin) != "in" {
		t.Errorf("the executor got %+v", got)
	}
	if len(got.ID) != 16 || strings.Trim(got.ID, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		t.Errorf("the call's id is %q", got.ID)
	}
}

func TestUnknownTool(t *testing.T) {
	_, err := connect(t, testServer(), nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "nope"})
	if err == nil || !strings.Contains(err.Error(), `unknown tool "nope"`) {
		t.Errorf("got %v", err)
	}
}

// refusing is an Executor that must not be asked to run anything.
type refusing struct {
	t       *testing.T
	refused error
}

func (r *refusing) Execute(context.Context, sandbox.Request) (*sandbox.Result, error) {
	r.t.Error("a refused call was executed")
	return nil, sandbox.ErrInternal
}

func (r *refusing) Refused(_ context.Context, req sandbox.Request, err error) {
	if req.ID == "" {
		r.t.Error("a refused call has no id")
	}
	r.refused = err
}

func TestRefusedCall(t *testing.T) {
	executor := &refusing{t: t}
	client := connect(t, testServer(func(o *Options) { o.Executor = executor }), nil)
	result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"language": "ruby", "code": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `invalid argument "language": "ruby" is not supported; use "bash" or "python"`
	if text := textOf(t, result); !result.IsError || text != want {
		t.Errorf("got isError %v, %q, want %q", result.IsError, text, want)
	}
	if !errors.Is(executor.refused, sandbox.ErrInvalid) {
		t.Errorf("the executor was told %v", executor.refused)
	}
}

// Row 45.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	client := connect(t, testServer(func(o *Options) {
		o.Executor = executorFunc(func(context.Context, sandbox.Request) (*sandbox.Result, error) { panic("SECRET_REASON") })
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}), nil)
	for range 2 { // the second shows that the first did no harm
		result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: args("x")})
		if err != nil {
			t.Fatal(err)
		}
		if text := textOf(t, result); !result.IsError || !strings.HasPrefix(text, "internal error (request ") {
			t.Errorf("got isError %v, %q", result.IsError, text)
		}
	}
	if !strings.Contains(log.String(), "SECRET_REASON") || !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("the log has no reason or no stack: %s", log.String())
	}
}

// Row 36, in the bubble's own time.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu  sync.Mutex
			got []*mcp.ProgressNotificationParams
		)
		client := connect(t, testServer(func(o *Options) {
			o.Executor = executorFunc(func(_ context.Context, r sandbox.Request) (*sandbox.Result, error) {
				time.Sleep(6 * time.Second)
				r.Started()
				time.Sleep(10 * time.Second)
				return ran(sandbox.StatusExited, 0, 0, "", ""), nil
			})
		}), &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Params)
		}})
		call := func(token any) {
			t.Helper()
			params := &mcp.CallToolParams{Name: "execute_code", Arguments: args("x")}
			if token != nil {
				params.SetProgressToken(token)
			}
			if _, err := client.CallTool(t.Context(), params); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute) // for what must not come
		}
		call("token")
		mu.Lock()
		defer mu.Unlock()
		want := []struct {
			progress float64
			message  string
		}{{5, "queued, 5 s"}, {10, "running, 10 s"}, {15, "running, 15 s"}}
		if len(got) != len(want) {
			t.Fatalf("%d notifications, want %d", len(got), len(want))
		}
		for i, w := range want {
			if got[i].ProgressToken != "token" || got[i].Progress != w.progress || got[i].Message != w.message {
				t.Errorf("notification %d is %+v, want %+v", i, got[i], w)
			}
		}
		got = nil
		mu.Unlock()
		call(nil)
		mu.Lock()
		if len(got) != 0 {
			t.Errorf("%d notifications without a token", len(got))
		}
	})
}

// What a call's carrier says ends the call, with the carrier's cause.
func TestCarrier(t *testing.T) {
	gone := errors.New("gone")
	life, end := context.WithCancelCause(t.Context())
	accepted := 0
	ctx, done := accept(WithCarrier(t.Context(), life, func() { accepted++ }))
	defer done()
	if accepted != 1 || ctx.Err() != nil {
		t.Errorf("accepted %d times, context %v", accepted, ctx.Err())
	}
	end(gone)
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, gone) {
		t.Errorf("the cause is %v, want %v", cause, gone)
	}
}

func TestSetEnvironment(t *testing.T) {
	s := testServer()
	describe := func() string {
		t.Helper()
		list, err := connect(t, s, nil).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Tools) != 1 {
			t.Fatalf("%d tools, want 1", len(list.Tools))
		}
		return list.Tools[0].Description
	}
	before := describe()
	s.SetEnvironment("Python 3.14 with numpy.")
	after := describe()
	if want := strings.Replace(before, s.opts.Environment, "Python 3.14 with numpy.", 1); after != want || after == before {
		t.Errorf("got %q, want %q", after, want)
	}
}

// Nothing of a call is logged above level debug.
func TestLogIsSilent(t *testing.T) {
	var log bytes.Buffer
	client := connect(t, testServer(func(o *Options) {
		o.Executor = executorFunc(func(context.Context, sandbox.Request) (*sandbox.Result, error) {
			return ran(sandbox.StatusExited, 0, 0, "SECRET_OUTPUT", ""), nil
		})
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}), nil)
	for _, a := range []map[string]any{args("SECRET_CODE"), {"language": "SECRET_LANGUAGE"}} {
		if _, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: a}); err != nil {
			t.Fatal(err)
		}
	}
	if b, _ := io.ReadAll(&log); len(b) > 0 {
		t.Errorf("logged %s", b)
	}
}
