// Package mcpserver is the tool as MCP clients see it: its definition, the
// decoding of its arguments, the words of its results, and the handler that
// takes one call from the first to the last. It knows the sandbox only as a
// sandbox.Executor.
//
// Both eras of the protocol are served by one stateless handler: "modern" is
// 2026-07-28, where every request stands alone, "legacy" is everything before
// it, which begins with an initialize handshake.
package mcpserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/sandbox"
)

// Options say how the tool is offered.
type Options struct {
	// Executor runs the programs. Required.
	Executor sandbox.Executor
	// Limits are checked before a call is accepted, and told to the model.
	// They must be those of the Executor. Required.
	Limits sandbox.Limits
	// Version is what clients are told. Empty means "devel".
	Version string
	// Logger takes the details that a client must not see. Nil discards them.
	Logger *slog.Logger
	// MaxStdoutChars and MaxStderrChars bound the characters of each stream
	// in a result's text. Zero means 16,000 and 8,000: about 6,000 tokens,
	// below what the known clients cut by themselves.
	MaxStdoutChars, MaxStderrChars int
	// Structured adds an output schema and structured results.
	Structured bool
	// Environment says in one or two sentences which interpreters and packages
	// a program finds, such as "Bash 5.2; Python 3.13 with numpy." Empty says
	// nothing about them. See Server.SetEnvironment.
	Environment string
	// ProgressInterval is the time between two progress notifications to a
	// client that asked for them. Zero means 5 s: clients give up on a silent
	// call after 60 s.
	ProgressInterval time.Duration
}

// Server offers the tool execute_code. Create it with New.
type Server struct {
	opts    Options
	current atomic.Pointer[mcp.Server]
}

// New returns a Server. It panics when a required option is missing.
func New(opts Options) *Server {
	if opts.Executor == nil || opts.Limits.MaxTimeout == 0 {
		panic("mcpserver: Executor and Limits are required")
	}
	if opts.Version == "" {
		opts.Version = "devel"
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxStdoutChars == 0 {
		opts.MaxStdoutChars = 16_000
	}
	if opts.MaxStderrChars == 0 {
		opts.MaxStderrChars = 8_000
	}
	if opts.ProgressInterval == 0 {
		opts.ProgressInterval = 5 * time.Second
	}
	s := &Server{opts: opts}
	s.SetEnvironment(opts.Environment)
	return s
}

// SetEnvironment changes what the tool's description says of the interpreters
// and packages, for every request from now on. It is safe for concurrent use.
func (s *Server) SetEnvironment(environment string) {
	server := mcp.NewServer(
		&mcp.Implementation{
			Name:    "code-execution-sandbox",
			Title:   "Code execution sandbox",
			Version: s.opts.Version,
		},
		&mcp.ServerOptions{
			Instructions: instructions(s.opts),
			// Not nil, which would declare the deprecated logging.
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
			// Five minutes: a new image changes the description, seldom.
			SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.TTLMs = 300_000 },
			Logger:       sdkLogger(s.opts.Logger),
		})
	server.AddTool(tool(s.opts, environment), s.call)
	server.AddReceivingMiddleware(s.recoverPanics)
	s.current.Store(server)
}

// Handler returns the handler of the MCP endpoint. It answers POST alone, and
// leaves to the handlers before it: the bearer token, the Host and Origin
// headers, and the end of a call whose client went away (see WithCarrier).
func (s *Server) Handler() http.Handler {
	return mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return s.current.Load() },
		&mcp.StreamableHTTPOptions{
			// The modern protocol needs it, and legacy clients survive a
			// restart of the server.
			Stateless: true,
			// A MUST of the modern protocol that is off by default.
			PropagateRequestCancellation: true,
			// The check knows only loopback names, not the operator's.
			DisableLocalhostProtection: true,
			MaxRequestBodyBytes:        MaxBodyBytes(s.opts.Limits),
			Logger:                     sdkLogger(s.opts.Logger),
		})
}

// MaxBodyBytes is the size of the largest request that can hold a call within
// l: JSON may write a byte as an escape of six.
func MaxBodyBytes(l sandbox.Limits) int64 {
	return 6*int64(l.MaxCodeBytes+l.MaxStdinBytes) + 64<<10
}

// call handles one tools/call. It never returns an error: those would be
// errors of the protocol, which the model does not see.
func (s *Server) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	id := newID()
	request, err := decode(req.Params.Arguments, s.opts.Limits)
	request.ID = id
	if err != nil {
		s.refused(ctx, request, err)
		return s.failure(ctx, id, err), nil
	}
	ctx, done := accept(ctx)
	defer done()

	var running atomic.Bool
	request.Started = func() { running.Store(true) }
	stop := s.reportProgress(ctx, req, &running)
	defer stop()
	result, err := s.opts.Executor.Execute(ctx, request)
	stop() // no progress after the result
	if err != nil {
		return s.failure(ctx, id, err), nil
	}
	return s.success(ctx, result), nil
}

// refused tells an Executor that wants to know of the calls that never reach it.
func (s *Server) refused(ctx context.Context, request sandbox.Request, err error) {
	if e, ok := s.opts.Executor.(interface {
		Refused(context.Context, sandbox.Request, error)
	}); ok {
		e.Refused(ctx, request, err)
	}
}

// failure puts an error into words for the model. What is ours to repair goes
// to the log under the call's id.
func (s *Server) failure(ctx context.Context, id string, err error) *mcp.CallToolResult {
	var (
		busy     *sandbox.BusyError
		notReady *sandbox.NotReadyError
		kind     string
		text     string
	)
	switch {
	case errors.Is(err, sandbox.ErrInvalid):
		kind, text = "invalid", err.Error()
	case errors.As(err, &busy):
		kind, text = "busy", busy.Error()+"; retry in a few seconds"
	case errors.Is(err, sandbox.ErrBusy):
		kind, text = "busy", "server busy; retry in a few seconds"
	case errors.As(err, &notReady):
		kind, text = "unavailable", fmt.Sprintf("code execution is not available: %s: %s (request %s)", notReady.Check, notReady.Reason, id)
	case errors.Is(err, sandbox.ErrUnavailable):
		kind, text = "unavailable", fmt.Sprintf("code execution is not available at the moment; try again later (request %s)", id)
	case ctx.Err() != nil && !errors.Is(err, sandbox.ErrInternal):
		kind, text = "canceled", "canceled before the program started"
	default:
		kind, text = "internal", fmt.Sprintf("internal error (request %s)", id)
	}
	switch kind {
	case "unavailable":
		s.opts.Logger.WarnContext(ctx, "call not served", "id", id, "err", err)
	case "internal":
		s.opts.Logger.ErrorContext(ctx, "call failed", "id", id, "err", err)
	}
	return &mcp.CallToolResult{
		IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: oneLine(text)}},
		Meta:    mcp.Meta{metaKey: map[string]any{"error": kind, "request_id": id}},
	}
}

// errEnded is why there is no more progress to report.
var errEnded = errors.New("the call has ended")

// reportProgress sends a notification per interval while a call waits and runs,
// where the client gave a token for it. The function returned ends that and may
// be called more than once; after it nothing is sent.
func (s *Server) reportProgress(ctx context.Context, req *mcp.CallToolRequest, running *atomic.Bool) (stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		begin, sent := time.Now(), time.Duration(0)
		tick := time.NewTicker(s.opts.ProgressInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			state := "queued"
			if running.Load() {
				state = "running"
			}
			elapsed := time.Since(begin).Truncate(time.Millisecond)
			if elapsed <= sent { // the protocol wants progress
				continue
			}
			sent = elapsed
			// An error means that the client is gone, which ctx will tell.
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token,
				Progress:      elapsed.Seconds(),
				Message:       fmt.Sprintf("%s, %d s", state, int(elapsed.Seconds())),
			})
		}
	}()
	return func() { cancel(errEnded); <-done }
}

// recoverPanics keeps a panic in a handler from ending the process: the SDK
// runs handlers on goroutines of its own and recovers nothing.
func (s *Server) recoverPanics(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (result mcp.Result, err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			id := newID()
			s.opts.Logger.ErrorContext(ctx, "panic in a handler", "id", id, "method", method, "panic", p, "stack", string(debug.Stack()))
			if _, ok := req.(*mcp.CallToolRequest); ok {
				result, err = s.failure(ctx, id, sandbox.ErrInternal), nil
				return
			}
			result, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("internal error (request %s)", id)}
		}()
		return next(ctx, method, req)
	}
}

// newID returns 80 random bits in characters that fit every name and label.
func newID() string { return strings.ToLower(rand.Text()[:16]) }

// sdkLogger passes what the SDK logs on at level debug: it calls a client's
// mistake an error, and every request an event.
func sdkLogger(l *slog.Logger) *slog.Logger { return slog.New(demoted{l.Handler()}) }

type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
