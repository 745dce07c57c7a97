// Package observe is what the operator sees of each call: one audit event in
// the log, and Prometheus metrics. It is a sandbox.Executor in front of
// another one.
//
// The audit event never holds code, standard input or output; at level debug
// they are logged beside it. Nothing that a caller chooses becomes a label of
// a metric.
package observe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"code-execution-sandbox/internal/sandbox"
)

// Options say where a call is told of.
type Options struct {
	// Logger takes the events. Nil discards them.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Limits are told of with each call.
	Limits sandbox.Limits
}

// Executor tells of the calls that pass through it. Create it with New.
type Executor struct {
	next    sandbox.Executor
	opts    Options
	metrics *metrics
}

var _ sandbox.Executor = (*Executor)(nil)

// New returns an Executor in front of next. It panics when its metrics are
// registered already.
func New(next sandbox.Executor, opts Options) *Executor {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	m := newMetrics()
	if opts.Registerer != nil {
		opts.Registerer.MustRegister(m.all()...)
	}
	return &Executor{next: next, opts: opts, metrics: m}
}

// Execute runs req and tells of it.
func (e *Executor) Execute(ctx context.Context, req sandbox.Request) (*sandbox.Result, error) {
	e.logProgram(ctx, req)
	begin := time.Now()
	leave := e.metrics.enter(&req)

	var (
		result *sandbox.Result
		err    error = panicked{}
	)
	// In a deferred call, so that a panic on its way up is told of, too.
	defer func() {
		leave()
		e.metrics.count(req, outcome(ctx, result, err), result, err, time.Since(begin))
		e.logEnd(ctx, req, result, err, time.Since(begin))
	}()
	result, err = e.next.Execute(ctx, req)
	return result, err
}

// Refused tells of a call that was refused before it came to Execute.
func (e *Executor) Refused(ctx context.Context, req sandbox.Request, err error) {
	e.metrics.count(req, outcome(ctx, nil, err), nil, err, 0)
	e.logEnd(ctx, req, nil, err, 0)
}

// panicked stands for the error of a call that did not return.
type panicked struct{}

func (panicked) Error() string { return "panic" }
func (panicked) Unwrap() error { return sandbox.ErrInternal }

// outcome is the status of a result, or the kind of an error.
func outcome(ctx context.Context, result *sandbox.Result, err error) string {
	switch {
	case err == nil:
		return string(result.Status)
	case ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())):
		return string(sandbox.StatusCanceled)
	case errors.Is(err, sandbox.ErrInvalid):
		return "invalid"
	case errors.Is(err, sandbox.ErrBusy):
		return "busy"
	case errors.Is(err, sandbox.ErrUnavailable):
		return "unavailable"
	}
	return "internal"
}

// logEnd writes the audit event of a call.
func (e *Executor) logEnd(ctx context.Context, req sandbox.Request, result *sandbox.Result, err error, total time.Duration) {
	sum := sha256.Sum256([]byte(req.Code))
	attrs := []slog.Attr{
		slog.String("id", req.ID),
		slog.String("outcome", outcome(ctx, result, err)),
		slog.String("language", language(req.Language)),
		slog.String("code_sha256", hex.EncodeToString(sum[:])),
		slog.Int("code_bytes", len(req.Code)),
		slog.Int("stdin_bytes", len(req.Stdin)),
		slog.Int64("total_ms", total.Milliseconds()),
		slog.Group("limits",
			slog.Int64("memory_bytes", e.opts.Limits.Memory),
			slog.Float64("cpus", e.opts.Limits.CPUs),
			slog.Int64("pids", e.opts.Limits.PIDs),
			slog.Int64("tmp_bytes", e.opts.Limits.Tmp),
			slog.Int("kept_bytes", e.opts.Limits.MaxOutputBytes)),
	}
	if invalid := (*sandbox.InvalidError)(nil); errors.As(err, &invalid) {
		// The words may repeat what the caller sent.
		attrs = append(attrs, slog.String("invalid_argument", invalid.Argument))
	} else if err != nil {
		attrs = append(attrs, slog.String("err", err.Error()))
	}
	if result != nil {
		attrs = append(attrs,
			slog.Int("exit_code", result.ExitCode),
			slog.Int("signal", result.Signal),
			slog.Bool("oom_killed", result.OOMKilled),
			slog.Int64("timeout_ms", result.Timeout.Milliseconds()),
			slog.Int64("queued_ms", result.Queued.Milliseconds()),
			slog.Int64("duration_ms", result.Duration.Milliseconds()),
			slog.Int64("cpu_ms", result.CPUTime.Milliseconds()),
			slog.Int64("peak_memory_bytes", result.PeakMemory),
			slog.Int64("stdout_bytes", result.StdoutBytes),
			slog.Int64("stderr_bytes", result.StderrBytes),
			slog.Int64("stdout_cut_bytes", result.StdoutBytes-int64(len(result.Stdout))),
			slog.Int64("stderr_cut_bytes", result.StderrBytes-int64(len(result.Stderr))),
			slog.Bool("truncated", result.Truncated()),
		)
	}
	if cause := context.Cause(ctx); cause != nil {
		attrs = append(attrs, slog.String("canceled_because", cause.Error()))
	}
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		attrs = append(attrs, slog.Any("caller", c))
	}
	e.opts.Logger.LogAttrs(ctx, slog.LevelInfo, "call ended", attrs...)
	if result != nil {
		e.opts.Logger.LogAttrs(ctx, slog.LevelDebug, "output of call",
			slog.String("id", req.ID),
			slog.String("stdout", string(result.Stdout)),
			slog.String("stderr", string(result.Stderr)))
	}
}

// language is l, or "other": what a caller puts in its place is the caller's.
func language(l sandbox.Language) string {
	if !l.Valid() {
		return "other"
	}
	return string(l)
}

// logProgram writes what is to run, at level debug only.
func (e *Executor) logProgram(ctx context.Context, req sandbox.Request) {
	e.opts.Logger.LogAttrs(ctx, slog.LevelDebug, "program of call",
		slog.String("id", req.ID),
		slog.String("language", string(req.Language)),
		slog.Duration("timeout", req.Timeout),
		slog.String("code", req.Code),
		slog.String("stdin", string(req.Stdin)))
}

// Caller is who made a call, for the audit event. Empty fields are left out.
type Caller struct {
	// Principal is the name of the bearer token, never the token.
	Principal string
	// Address is the peer of the connection.
	Address string
	// Agent is what the client calls itself.
	Agent string
	// Protocol is the version of MCP that the client said it speaks.
	Protocol string
	// Trace is the client's W3C traceparent.
	Trace string
}

type callerKey struct{}

// WithCaller returns a child of ctx that names the caller of the calls in it.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// LogValue leaves out what is empty, and cuts what a client could have made
// long. Control characters are the log handler's to escape.
func (c Caller) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, f := range []struct{ key, value string }{
		{"principal", c.Principal}, {"address", c.Address}, {"agent", c.Agent}, {"protocol", c.Protocol}, {"trace", c.Trace},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.key, short(f.value)))
		}
	}
	return slog.GroupValue(attrs...)
}

func short(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) && cut > most-utf8.UTFMax {
		cut--
	}
	return s[:cut] + "…"
}
