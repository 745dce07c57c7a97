package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/sandbox"
)

const (
	// refreshEvery is how soon a new image is used, and a lost containerd seen.
	refreshEvery = 2 * time.Second
	// refreshTimeout bounds one look at all that running a program needs.
	refreshTimeout = time.Minute
	// janitorEvery is how often leftovers are looked for.
	janitorEvery = 30 * time.Second
	// pingTimeout bounds a question that containerd answers from memory.
	pingTimeout = 5 * time.Second
	// healthTimeout is the same for Health, whose callers have less patience.
	healthTimeout = 2 * time.Second
	// proofAge is how long the protections are taken to hold once proven.
	proofAge = 10 * time.Minute
	// doubtAge is the same while there is a reason for doubt: sandboxes that
	// cannot be made, or a proof that failed.
	doubtAge = 10 * time.Second
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

	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var cleaned time.Time // zero: before the next program runs
	for {
		switch err := r.ping(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			_ = r.setReady(nil, errAway)
			cleaned = time.Time{}
		default:
			r.counts.saw(r.daemonPID(ctx))
			if time.Since(cleaned) >= janitorEvery {
				r.retryLost(ctx)
				r.sweepAndLog(ctx)
				cleaned = time.Now()
			}
			_ = r.Refresh(ctx) // it logs what is news, and keeps it
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (r *Runner) sweepAndLog(ctx context.Context) {
	swept, err := r.Sweep(ctx)
	r.counts.cleaned(swept)
	if err != nil && ctx.Err() == nil {
		r.log.Error("sweep incomplete", "error", err)
	}
	switch {
	case swept == Swept{Snapshots: swept.Snapshots} && swept.Any():
		r.log.Info("removed views of images that nothing uses", "views", swept.Snapshots)
	case swept.Any():
		r.log.Warn("swept what a dead server left", "removed", swept)
	}
}

// retryLost tries again to remove sandboxes that could not be removed.
func (r *Runner) retryLost(ctx context.Context) {
	for _, b := range r.reclaim() {
		r.disposeLater(ctx, b)
	}
}

// reclaim returns the sandboxes that could not be removed and that nobody is
// removing now. They are the caller's to remove: looking and claiming is one
// step, or a removal that ends in between would give a room back twice.
func (r *Runner) reclaim() []*box {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*box
	for _, b := range r.boxes {
		if b.lost != nil && !b.removing {
			b.removing = true
			out = append(out, b)
		}
	}
	return out
}

// ping returns nil if containerd answers.
func (r *Runner) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pingTimeout, errors.New("no answer in time"))
	defer cancel()
	_, err := r.opts.Client.Version(ctx)
	if err == nil {
		return nil
	}
	// The connection waits longer and longer, up to the client's timeout,
	// before it looks for a daemon that was away.
	if conn, ok := r.opts.Client.Conn().(interface{ ResetConnectBackoff() }); ok {
		conn.ResetConnectBackoff()
	}
	return fmt.Errorf("%w (%w)", errAway, err)
}

// daemonPID returns the process id of containerd, zero where it cannot be
// learned: another one means that it was restarted, maybe as another version.
func (r *Runner) daemonPID(ctx context.Context) int {
	ctx, cancel := context.WithTimeoutCause(ctx, pingTimeout, errors.New("no answer in time"))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", r.opts.Address)
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// Health returns why no program can run, as a *sandbox.NotReadyError, or nil.
// It asks containerd each time.
func (r *Runner) Health(ctx context.Context) error {
	r.mu.Lock()
	err, closed := r.notReady, r.closed
	r.mu.Unlock()
	switch {
	case closed:
		return errClosed
	case err != nil:
		return err
	}
	if err := r.crowded(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healthTimeout, errors.New("no answer in time"))
	defer cancel()
	if r.ping(ctx) != nil {
		return errAway
	}
	return nil
}

// proof is the last self-test.
type proof struct {
	view   string // of the root file system
	daemon int    // process id of containerd
	at     time.Time
	err    error
}

// prove runs the self-test when it is due, or tells how it ended last.
//
// Preconditions: r.refreshing is held.
func (r *Runner) prove(ctx context.Context, fs *rootfs) error {
	now := proof{view: fs.key, daemon: r.daemonPID(ctx), at: time.Now()}
	r.mu.Lock()
	last := r.proof
	r.mu.Unlock()
	same := last.view == now.view && last.daemon == now.daemon
	r.mu.Lock()
	age := proofAge
	if r.doubted || last.err != nil {
		age = doubtAge
	}
	due := !same || now.at.Sub(last.at) >= age
	if due {
		r.doubted = false
	}
	r.mu.Unlock()
	if !due {
		return last.err
	}
	now.err = r.selfTest(ctx, fs)
	if ctx.Err() != nil || r.ping(ctx) != nil {
		return errAway // which proves nothing
	}
	if errors.Is(now.err, errNoRoom) { // busy, which proves nothing either
		if same {
			return last.err
		}
		return &sandbox.NotReadyError{Check: "selftest", Reason: "every sandbox is in use"}
	}
	r.mu.Lock()
	r.proof = now
	r.mu.Unlock()
	return now.err
}

// Proof tells when the protections were last put to the proof, and how that
// ended. The time is zero before the first one.
func (r *Runner) Proof() (at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proof.at, r.proof.err
}

// doubt asks for a proof soon, since a sandbox could not be made.
func (r *Runner) doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubted = true
}
