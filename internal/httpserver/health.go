package httpserver

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

// health answers /healthz: 200 says that calls are welcome, 503 why not, which
// is what a load balancer asks. With ?live it says only that this process
// answers, for those who would restart it: a restart cures neither containerd
// nor a missing image, and would end the calls that run.
type health struct {
	check   HealthChecker
	version string
	detail  func() HealthDetail // nil for none

	mu      sync.Mutex
	err     error     // guarded by mu; what check said last
	checked time.Time // guarded by mu; when, zero for never
}

// HealthDetail is what /healthz tells beside that all is well.
type HealthDetail struct {
	// Missing names the protections that the host lacks and that the
	// configuration allows it to lack.
	Missing []string `json:"missing_protections,omitempty"`
	// SelfTest is when a sandbox has last proven its protections.
	SelfTest time.Time `json:"self_test,omitzero"`
}

const (
	// healthAge is how long an answer stays good: anyone may ask, and every
	// question goes on to containerd.
	healthAge = time.Second
	// healthTimeout is the time after which a check that does not answer has
	// failed.
	healthTimeout = 3 * time.Second
)

func (h *health) serve(w http.ResponseWriter, r *http.Request, leaving bool) {
	if r.URL.Query().Has("live") {
		answer(w, http.StatusOK, struct {
			Status string `json:"status"`
		}{"alive"})
		return
	}
	err := errShutdown
	if !leaving {
		err = h.ask(r.Context())
	}
	if err == nil {
		var detail HealthDetail
		if h.detail != nil {
			detail = h.detail()
		}
		answer(w, http.StatusOK, struct {
			Status  string `json:"status"`
			Version string `json:"version,omitempty"`
			HealthDetail
		}{"ok", h.version, detail})
		return
	}
	notReady := &sandbox.NotReadyError{Check: "internal", Reason: "the check failed; the server's log has more"}
	if errors.Is(err, context.DeadlineExceeded) {
		notReady.Reason = "the check did not end in time"
	}
	errors.As(err, &notReady)
	answer(w, http.StatusServiceUnavailable, struct {
		Status string `json:"status"`
		Check  string `json:"check"`
		Reason string `json:"reason"`
	}{"unavailable", notReady.Check, notReady.Reason})
}

// ask returns the last answer while it is fresh, or asks once for all who wait.
func (h *health) ask(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.checked.IsZero() && time.Since(h.checked) < healthAge {
		return h.err
	}
	// Not ended by a client that goes away: others wait for the same answer.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healthTimeout, errors.New("health check timed out"))
	defer cancel()
	h.err = h.check.Health(ctx)
	h.checked = time.Now()
	return h.err
}
