// Package httpserver is the HTTP side of the service: who may call, how large a
// request may be, how long a connection may stay silent, how a call ends when
// its client goes away, and how the service ends.
//
//	POST /mcp      the MCP endpoint; bearer token
//	GET  /healthz  200 or 503 with the reason; no token. With ?live 200 as long
//	               as anything is answered
//	GET  /metrics  Prometheus; bearer token
//
// Everything else is a 404. Errors of this package are JSON, as in OAuth:
// {"error": one word, "error_description": what to do}. Clients show the body
// to their user, and some can parse nothing else.
package httpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"code-execution-sandbox/internal/observe"
	"code-execution-sandbox/internal/sandbox"
)

const (
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second // of a whole request
	idleTimeout       = 2 * time.Minute
	writeTimeout      = 30 * time.Second // of one write; see response
	maxHeaderBytes    = 32 << 10

	// answerTime is how long calls that were ended by a shutdown may take to
	// kill their program and to answer.
	answerTime = 10 * time.Second
)

// Options say what is served, and to whom.
type Options struct {
	// MCP answers the MCP endpoint: the handler of an mcpserver.Server.
	// Required.
	MCP http.Handler
	// Health is asked by /healthz. Required.
	Health HealthChecker
	// HealthDetail is what a good answer of /healthz tells besides. Nil tells
	// nothing.
	HealthDetail func() HealthDetail
	// Gatherer gives the metrics of /metrics. Nil answers 404 there.
	Gatherer prometheus.Gatherer
	// Registerer takes the metrics of this package. Nil leaves them out.
	Registerer prometheus.Registerer
	// Tokens are the bearer tokens accepted. At least one is required.
	Tokens []Token
	// AllowedOrigins lists the Origin headers, such as https://app.example,
	// accepted beside none at all and, on a loopback connection, loopback
	// ones. Browsers of these origins are answered with CORS headers.
	AllowedOrigins []string
	// AllowedHosts lists the Host headers accepted, without regard to the port
	// unless one is given. Empty accepts every Host on connections that are
	// not loopback ones. On a loopback connection loopback names are accepted
	// besides, and a foreign name never unless it is listed: it means DNS
	// rebinding. /healthz answers whatever the Host, for load balancers.
	AllowedHosts []string
	// MaxBodyBytes bounds the body of a request. Zero means 8 MiB. See
	// mcpserver.MaxBodyBytes.
	MaxBodyBytes int64
	// MaxConnections bounds the open connections; for more, idle ones are closed,
	// and while none is idle they wait. Zero means no bound.
	MaxConnections int
	// KeepAlive is the time of silence after which a call that runs sends an
	// SSE comment. Zero means 5 s.
	KeepAlive time.Duration
	// ShutdownDelay is how long calls are still taken when Serve is told to
	// end, while /healthz says already that they are not welcome: so long a
	// load balancer may need to hear of it. Zero takes none any more.
	ShutdownDelay time.Duration
	// ShutdownGrace is how long running calls may go on after that. Zero ends
	// them at once.
	ShutdownGrace time.Duration
	// Hurry, where there is one, ends both at once when it is closed.
	Hurry <-chan struct{}
	// Version is told by /healthz.
	Version string
	// Logger takes refusals at level warn and requests at level debug. Nil
	// discards them.
	Logger *slog.Logger
}

// HealthChecker knows whether the service can run programs.
type HealthChecker interface {
	// Health returns nil, or an error that is a *sandbox.NotReadyError where
	// the reason is known. It is called at most about once a second.
	Health(ctx context.Context) error
}

// Server is the HTTP side of the service. Create it with New.
type Server struct {
	opts     Options
	tokens   tokens
	hosts    hosts
	origins  origins
	metrics  http.Handler // nil without a Gatherer
	health   *health
	calls    calls
	refusals *prometheus.CounterVec // reason

	leaving  atomic.Bool // said to be ending
	draining atomic.Bool // takes no call any more

	writeTimeout time.Duration
}

// New returns a Server, or an error that says which option is wrong.
func New(opts Options) (*Server, error) {
	if opts.MCP == nil || opts.Health == nil {
		return nil, errors.New("http server: MCP and Health are required")
	}
	if opts.MaxBodyBytes == 0 {
		opts.MaxBodyBytes = 8 << 20
	}
	if opts.KeepAlive == 0 {
		opts.KeepAlive = 5 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		opts:         opts,
		hosts:        newHosts(opts.AllowedHosts),
		origins:      newOrigins(opts.AllowedOrigins),
		writeTimeout: writeTimeout,
	}
	var err error
	if s.tokens, err = newTokens(opts.Tokens); err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	s.health = &health{check: opts.Health, version: opts.Version, detail: opts.HealthDetail}
	if opts.Gatherer != nil {
		s.metrics = promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(opts.Logger.Handler(), slog.LevelWarn),
		})
	}
	s.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: observe.Namespace, Name: "http_refusals_total",
		Help: "HTTP requests that were refused before anything in them was looked at, by reason.",
	}, []string{"reason"})
	for _, reason := range []string{"token", "host", "origin", "too_large", "shutting_down"} {
		s.refusals.WithLabelValues(reason)
	}
	if opts.Registerer != nil {
		opts.Registerer.MustRegister(s.refusals)
	}
	return s, nil
}

// Serve answers on ln until ctx ends. After the delay it closes ln, refuses new
// calls, and returns nil when the running ones have been answered: those still
// running after the grace are ended first. An error means that ln failed, or
// that calls did not end in time.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	var connState func(net.Conn, http.ConnState)
	if s.opts.MaxConnections > 0 {
		limited := newLimitListener(ln, s.opts.MaxConnections)
		ln, connState = limited, limited.connState
	}
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         connState,
		// WriteTimeout would end streams; response bounds each write instead.
		ErrorLog: slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve http: %w", err)
	case <-ctx.Done():
	}

	s.leaving.Store(true)
	s.opts.Logger.InfoContext(ctx, "shutting down", "running", s.calls.count(), "delay", s.opts.ShutdownDelay, "grace", s.opts.ShutdownGrace)
	select {
	case err := <-failed:
		return fmt.Errorf("serve http: %w", err)
	case <-time.After(s.opts.ShutdownDelay):
	case <-s.opts.Hurry:
	}
	s.draining.Store(true)
	stopping, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), s.opts.ShutdownGrace+answerTime, errShutdown)
	defer stop()
	go func() {
		select {
		case <-time.After(s.opts.ShutdownGrace):
		case <-s.opts.Hurry:
		case <-stopping.Done():
		}
		s.calls.endAll(errShutdown)
	}()
	if server.Shutdown(stopping) == nil {
		return nil
	}
	_ = server.Close() // what is left are connections, and their errors are not ours
	if n := s.calls.count(); n > 0 {
		return fmt.Errorf("shut down http: %d calls did not end in time", n)
	}
	return nil
}

// EndsWithin is how long Serve takes at most once it has been told to end.
func (s *Server) EndsWithin() time.Duration {
	return s.opts.ShutdownDelay + s.opts.ShutdownGrace + answerTime
}

// errShutdown is the cause of the end of a call that outlived the grace.
var errShutdown error = &sandbox.NotReadyError{Check: "shutdown", Reason: "the server is shutting down"}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	w := newResponse(rw, s.writeTimeout)
	w.leaving = s.leaving.Load
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so too
			s.opts.Logger.ErrorContext(r.Context(), "panic in an HTTP handler", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
		}
		if p != nil && w.status() == 0 {
			fail(w, http.StatusInternalServerError, "internal_error", "internal error; the server's log has more")
			p = nil
		}
		w.end()
		s.opts.Logger.DebugContext(r.Context(), "http request", "method", r.Method, "path", r.URL.Path,
			"status", w.status(), "remote", r.RemoteAddr, "ms", time.Since(begin).Milliseconds())
		if p != nil || w.status() == 0 && r.Context().Err() != nil {
			// Half an answer must not look whole, nor none like an empty one.
			panic(http.ErrAbortHandler)
		}
	}()
	s.route(w, r)
}

func (s *Server) route(w *response, r *http.Request) {
	switch r.URL.Path {
	case "/mcp":
		if s.admit(w, r) {
			s.serveMCP(w, r)
		}
	case "/healthz":
		if method(w, r, http.MethodGet, http.MethodHead) {
			s.health.serve(w, r, s.leaving.Load())
		}
	case "/metrics":
		if s.metrics != nil {
			if s.admit(w, r) && method(w, r, http.MethodGet, http.MethodHead) {
				s.metrics.ServeHTTP(w, r)
			}
			return
		}
		fallthrough
	default:
		// Clients look for OAuth metadata at several well-known places and
		// start a registration when they cannot read the answer.
		fail(w, http.StatusNotFound, "not_found", "the MCP endpoint is POST /mcp with a static bearer token; there is no OAuth")
	}
}

// admit checks where a request comes from and who sends it. It answers it and
// returns false when it goes no further.
func (s *Server) admit(w *response, r *http.Request) bool {
	if !s.hosts.allow(r) {
		s.refuse(w, r, http.StatusForbidden, "host", "forbidden_host", "this Host is not allowed; allowed_hosts in the server's configuration lists those that are, and a loopback address is called localhost")
		return false
	}
	if !s.origins.allow(r) {
		s.refuse(w, r, http.StatusForbidden, "origin", "forbidden_origin", "this Origin is not allowed; the server's allowed_origins lists those that are")
		return false
	}
	if s.origins.answerCORS(w, r) {
		return false
	}
	return s.authenticate(w, r)
}

// refuse answers with an error and counts it.
func (s *Server) refuse(w *response, r *http.Request, status int, reason, code, description string) {
	s.refusals.WithLabelValues(reason).Inc()
	s.opts.Logger.DebugContext(r.Context(), "http request refused", "reason", reason, "remote", r.RemoteAddr)
	fail(w, status, code, description)
}

// method answers 405 and returns false unless r uses one of the methods.
func method(w http.ResponseWriter, r *http.Request, allowed ...string) bool {
	if slices.Contains(allowed, r.Method) {
		return true
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	fail(w, http.StatusMethodNotAllowed, "method_not_allowed", "use "+list)
	return false
}

// fail answers with an error.
func fail(w http.ResponseWriter, status int, code, description string) {
	answer(w, status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{code, description})
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // only plain structs come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}
