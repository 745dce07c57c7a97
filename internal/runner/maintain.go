package runner

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

const (
	// refreshEvery is how soon a new image is used, and a lost containerd seen.
	refreshEvery = 2 * time.Second
	// janitorEvery is how often leftovers are looked for.
	janitorEvery = 30 * time.Second
	// probeTimeout bounds a question to containerd.
	probeTimeout = 5 * time.Second
)

// Maintain finds the image, keeps the pool full and the host clean until ctx
// ends. Programs can run once it has found the image.
func (r *Runner) Maintain(ctx context.Context) {
	pool := make(chan struct{})
	go func() {
		defer close(pool)
		r.pool.run(ctx)
	}()
	defer func() { <-pool }()

	r.sweepAndLog(ctx)
	refresh, janitor := time.NewTicker(refreshEvery), time.NewTicker(janitorEvery)
	defer refresh.Stop()
	defer janitor.Stop()
	for {
		probeCtx, cancel := context.WithTimeoutCause(ctx, prepareTimeout, errors.New("looking for the image took too long"))
		_ = r.Refresh(probeCtx) // it logs what is news, and keeps it
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-refresh.C:
		case <-janitor.C:
			r.retryLost(ctx)
			r.sweepAndLog(ctx)
		}
	}
}

func (r *Runner) sweepAndLog(ctx context.Context) {
	swept, err := r.Sweep(ctx)
	if err != nil && ctx.Err() == nil {
		r.log.Error("sweep incomplete", "error", err)
	}
	if swept.Any() {
		r.log.Warn("swept what a dead server left", "removed", swept)
	}
}

// retryLost tries again to remove sandboxes that could not be removed.
func (r *Runner) retryLost(ctx context.Context) {
	r.mu.Lock()
	lost := r.lost
	r.lost = map[int]*box{}
	r.mu.Unlock()
	for b := range maps.Values(lost) {
		r.disposeLater(ctx, b)
	}
}

// Health returns why no program can run, as a *sandbox.NotReadyError, or nil.
// It asks containerd each time.
func (r *Runner) Health(ctx context.Context) error {
	r.mu.Lock()
	err, lost := r.notReady, len(r.lost)
	if r.closed {
		err = &sandbox.NotReadyError{Check: "shutdown", Reason: "the server is shutting down"}
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if 2*lost >= cap(r.rooms) {
		return &sandbox.NotReadyError{Check: "host", Reason: fmt.Sprintf("%d of %d sandboxes cannot be removed; see the log, restart containerd", lost, cap(r.rooms))}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errors.New("no answer in time"))
	defer cancel()
	if _, err := r.opts.Client.Version(ctx); err != nil {
		return &sandbox.NotReadyError{Check: "containerd", Reason: "containerd does not answer; is it running?"}
	}
	return nil
}

//go:embed selftest.py
var selfTestProgram string

// selfTest proves from inside a sandbox on fs that its protections hold.
func (r *Runner) selfTest(ctx context.Context, fs *rootfs) error {
	var room int
	select {
	case room = <-r.rooms:
	case <-ctx.Done():
		return &sandbox.NotReadyError{Check: "selftest", Reason: "no room for a sandbox"}
	}
	failed := func(err error) error {
		return &sandbox.NotReadyError{Check: "selftest", Reason: "a sandbox could not be started: " + err.Error()}
	}
	b, err := r.prepare(ctx, sandbox.Python, fs, room)
	if err != nil {
		return failed(err)
	}
	defer r.disposeLater(ctx, b)
	code, err := SelfTestCode(r.opts)
	if err != nil {
		return failed(err)
	}
	res, err := b.run(ctx, &sandbox.Request{Language: sandbox.Python, Code: code, Timeout: r.opts.Limits.MaxTimeout})
	if err != nil {
		return failed(err)
	}
	if res.Status != sandbox.StatusExited || res.ExitCode != 0 || res.StderrBytes > 0 {
		return failed(fmt.Errorf("%s with exit code %d: %s", res.Status, res.ExitCode, res.Stderr))
	}
	if unmet := strings.TrimSpace(string(res.Stdout)); unmet != "" {
		return &sandbox.NotReadyError{Check: "selftest", Reason: "does not hold: " + strings.ReplaceAll(unmet, "\n", "; ")}
	}
	return nil
}

// SelfTestCode is the program of the self-test, with what it must know of the
// options. It prints nothing where every protection holds.
func SelfTestCode(o Options) (string, error) {
	spec, err := Spec(o, sandbox.Python)
	if err != nil {
		return "", err
	}
	// A list of strings is the same in JSON and in Python.
	environment, err := json.Marshal(spec.Process.Env)
	if err != nil {
		return "", fmt.Errorf("encode environment: %w", err)
	}
	userns := map[bool]string{true: "True", false: "False"}[o.UIDBase != 0]
	return fmt.Sprintf("USERNS, ENVIRONMENT = %s, %s\n%s", userns, environment, selfTestProgram), nil
}
