package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"code-execution-sandbox/internal/runner"
)

// inherited returns the socket that systemd listens on for us, nil where it
// does not. The socket outlives this process, so no connection is refused while
// the server is restarted.
func inherited(addr string, log *slog.Logger) (net.Listener, error) {
	listeners, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("take systemd's socket: %w", err)
	}
	if len(listeners) == 0 {
		return nil, nil
	}
	if len(listeners) > 1 || listeners[0] == nil {
		return nil, errors.New("take systemd's socket: the socket unit must have one ListenStream")
	}
	ln := listeners[0]
	if _, want, err := net.SplitHostPort(addr); err == nil {
		if _, have, err := net.SplitHostPort(ln.Addr().String()); err == nil && have != want {
			log.Warn("http_addr has no effect: systemd listens for this service; change it with `systemctl edit code-execution-sandbox.socket`",
				"http_addr", addr, "socket", ln.Addr().String())
		}
	}
	return ln, nil
}

const (
	// startPatience is how long systemd is left to believe that the service
	// starts while no program can run yet. A containerd that is away, or an image
	// that nobody has imported, is no failed start: the server waits for them,
	// and says so.
	startPatience = 45 * time.Second
	// startPoll is how soon a server that has become ready says so.
	startPoll = 250 * time.Millisecond
	// statusEvery is how fresh the status line of `systemctl status` is.
	statusEvery = 10 * time.Second
)

// manager is what the service tells systemd, which is nothing where that does
// not listen: sd_notify(3).
type manager struct {
	// handler is the server's own: what the watchdog hears of is that it answers.
	handler http.Handler
	load    func() runner.Load
	log     *slog.Logger
	// ending is the time within which the service ends when it is told to.
	ending time.Duration
	// every is the time between two signs of life.
	every time.Duration
	// patience is startPatience.
	patience time.Duration
}

func newManager(handler http.Handler, load func() runner.Load, ending time.Duration, log *slog.Logger) *manager {
	m := &manager{handler: handler, load: load, log: log, ending: ending, every: statusEvery, patience: startPatience}
	// sd_watchdog_enabled(3): half the time, or less.
	if limit, err := daemon.SdWatchdogEnabled(false); err == nil && limit > 0 {
		m.every = min(m.every, limit/3)
	}
	return m
}

// run tells systemd that the service is ready, and then that it is alive, until
// ctx ends. Alive is a server that answers, even that it cannot run programs:
// the watchdog must not restart it for what a restart does not cure.
func (m *manager) run(ctx context.Context) {
	begin := time.Now()
	ready := false
	for {
		state, ok := m.ask(ctx)
		if ok && !ready && (state == "" || time.Since(begin) >= m.patience) {
			ready = true
			m.tell(daemon.SdNotifyReady)
		}
		if ok {
			m.tell(daemon.SdNotifyWatchdog + "\nSTATUS=" + m.status(state))
		} else if ctx.Err() == nil {
			m.log.Error("the server does not answer itself", "within", m.every)
		}
		pause := m.every
		if !ready {
			pause = startPoll
		}
		select {
		case <-ctx.Done():
			// Calls that may run longer than TimeoutStopSec are answered, too.
			m.tell(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d\nSTATUS=answering the calls that run", daemon.SdNotifyStopping, m.ending.Microseconds()))
			return
		case <-time.After(pause):
		}
	}
}

// ask puts the question of /healthz to the server, past the network, whose
// connections others can use up. It returns why no program can run, and whether
// there was an answer at all.
func (m *manager) ask(ctx context.Context) (state string, ok bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.every, errors.New("the server does not answer itself"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/healthz", nil)
	if err != nil {
		return err.Error(), false
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{header: http.Header{}}
		m.handler.ServeHTTP(&a, req)
		answered <- a
	}()
	select {
	case a := <-answered:
		return a.reason(), true
	case <-ctx.Done():
		return "", false
	}
}

// status is the line that `systemctl status` shows.
func (m *manager) status(state string) string {
	if state != "" {
		return "not ready: " + strings.Join(strings.Fields(state), " ")
	}
	l := m.load()
	prepared := 0
	for _, n := range l.Prepared {
		prepared += n
	}
	return fmt.Sprintf("ready: %d running, %d waiting, %d prepared", l.Running, l.Queued, prepared)
}

func (m *manager) tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		m.log.Warn("systemd does not hear", "error", err)
	}
}

// answer is an http.ResponseWriter that keeps what it is given.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// reason is why the server says that it is not ready, empty when it is.
func (a *answer) reason() string {
	if a.code == http.StatusOK {
		return ""
	}
	var why struct{ Check, Reason string }
	if err := json.Unmarshal(a.body.Bytes(), &why); err != nil || why.Reason == "" {
		return http.StatusText(a.code)
	}
	return why.Check + ": " + why.Reason
}
