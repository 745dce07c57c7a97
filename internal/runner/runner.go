// Package runner runs programs in sandboxes on containerd: it prepares a
// sandbox, delivers one program into it, watches it to its end, and removes
// every trace. Sandboxes can be prepared before a program is known; a pool
// decides when, the path is the same.
//
// What is known of containerd and its shims, and relied upon here:
//
//   - The life of a task is Create (the shim starts, the runtime makes the
//     container), Start, exit, Delete. Each is a round trip; only what stands
//     between the program's last act and the answer is on the caller's path,
//     the rest happens before and after.
//   - Where the shim relays the streams, it copies between our FIFOs and the
//     container's pipes, and closes its ends when the last process in the
//     container has closed theirs. Whoever deletes before the end of file
//     loses output.
//   - A cancelled context in the middle of a removal leaks the shim, so
//     removals run on contexts of their own.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/admit"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/oci"
)

// Stages of a call, as told to Options.Stage.
const (
	StageQueue   = "queue"
	StagePrepare = "prepare"
	StageRun     = "run"
	StageDispose = "dispose"
)

// Options are the settings of a Runner. Fields without a remark are required.
type Options struct {
	// Client is connected to containerd at Address, with Namespace as its
	// default.
	Client    *containerd.Client
	Address   string
	Namespace string
	// Snapshotter and ImageName say where the root file system comes from.
	Snapshotter, ImageName string
	// Runtime is the name of the shim, such as "io.containerd.runc.v2".
	Runtime string
	// Relay has the shim carry the programs' streams. It is always so with a
	// Runtime whose processes are not the host's, which is every one but runc's
	// shim.
	Relay bool
	// RuntimeBinary is the OCI runtime the shim calls; empty for its default.
	RuntimeBinary string
	// RunDir is an absolute path on a tmpfs that the shims can reach.
	RunDir       string
	Cgroups      *cgroup.Host
	CgroupParent string
	// Total bounds all sandboxes together; zero does not.
	Total  cgroup.Total
	Limits sandbox.Limits
	// Slots is how many programs run at a time; MaxWaiting and MaxWait bound
	// the queue for them.
	Slots, MaxWaiting int
	MaxWait           time.Duration
	// Pool says how many sandboxes wait prepared for each language. Empty
	// means that each is prepared when it is needed.
	Pool map[sandbox.Language]int
	// Preload names the Python modules that a sandbox has imported before its
	// program comes.
	Preload []string
	// PoolMaxAge is the age at which a prepared sandbox is replaced.
	PoolMaxAge time.Duration
	// UIDBase is the first host id of the user namespaces, a multiple of 65536;
	// zero runs without. Ranges that another Runner on this host has, whatever
	// its process, are passed over.
	UIDBase uint32
	// AppArmorProfile is the name of a loaded profile; empty for none.
	AppArmorProfile string
	// NoSwapLimit is for kernels that do not account for swap space.
	NoSwapLimit bool
	// Arch is the architecture of the host as Go names it.
	Arch string
	// SelfTest refuses programs until a sandbox has shown from inside that its
	// limits hold, and asks for that proof again from time to time.
	SelfTest bool
	// PrepareTimeout bounds the way to a sandbox that waits for a program, the
	// wait for room included. Zero means 30 s.
	PrepareTimeout time.Duration
	// Stage, when set, is told how long each stage took.
	Stage func(stage string, took time.Duration)
	// ImageChanged, when set, is told of the image that sandboxes use from now
	// on.
	ImageChanged func(image.Image)
	// Log, when nil, is slog's default.
	Log *slog.Logger
}

// Runner is a sandbox.Executor on containerd. Create it with New, end it with
// Close.
type Runner struct {
	opts       Options
	log        *slog.Logger
	containers containers.Store
	tasks      tasks.TasksClient
	instance   *instance
	gate       *admit.Gate
	pool       *pool
	// rooms holds the numbers of the sandboxes that may still be made. A room
	// is taken before a sandbox is prepared and comes back when it is gone,
	// so it bounds all that exist and owns a range of user ids.
	rooms  chan int
	ids    *ids // of each room; empty without user namespaces
	counts counts
	// looked is closed when the state of the host is known for the first time.
	looked chan struct{}
	// busy counts calls, disposals and the pool's work.
	busy sync.WaitGroup

	bounding   sync.Mutex // guards the limits of the parent cgroup
	refreshing sync.Mutex

	mu       sync.Mutex
	rootfs   *rootfs         // guarded by mu; nil until an image was found
	view     string          // guarded by mu; the snapshot of the image found last, in use or not
	notReady error           // guarded by mu; nil or *sandbox.NotReadyError
	boxes    map[string]*box // guarded by mu; all that exist, by id
	doubted  bool            // guarded by mu; the next Refresh asks for a proof
	proof    proof           // guarded by mu; the last one
	// up ends when containerd goes away, with the reason as its cause: nobody
	// waits for a sandbox then.
	up     context.Context         //nolint:containedctx // guarded by mu; a state, not a call's
	down   context.CancelCauseFunc // guarded by mu; ends up
	closed bool                    // guarded by mu
}

var _ sandbox.Executor = (*Runner)(nil)

// Rooms is how many sandboxes can exist at a time, with so many slots and so many
// sandboxes prepared: as many again as may run can be on their way out.
func Rooms(slots, pooled int) int { return 2*slots + pooled }

// New makes a Runner. Nothing runs until Refresh has found an image.
func New(opts Options) (*Runner, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.Stage == nil {
		opts.Stage = func(string, time.Duration) {}
	}
	if opts.ImageChanged == nil {
		opts.ImageChanged = func(image.Image) {}
	}
	if opts.PrepareTimeout == 0 {
		opts.PrepareTimeout = prepareTimeout
	}
	opts.Relay = opts.Relay || opts.Runtime != runcShim
	opts.Address = strings.TrimPrefix(opts.Address, "unix://")
	pooled := 0
	for _, n := range opts.Pool {
		pooled += n
	}
	rooms := Rooms(opts.Slots, pooled)
	claimed := &ids{}
	if opts.UIDBase%uidsPerSandbox != 0 {
		return nil, fmt.Errorf("user ids: %d is not a multiple of %d", opts.UIDBase, uidsPerSandbox)
	}
	if opts.UIDBase != 0 {
		var err error
		if claimed, err = claimIDs(claimsFile, opts.UIDBase, rooms); err != nil {
			return nil, err
		}
	}
	inst, err := newInstance(opts.RunDir)
	if err != nil {
		claimed.release()
		return nil, err
	}
	r := &Runner{
		opts: opts, log: opts.Log,
		containers: opts.Client.ContainerService(),
		tasks:      opts.Client.TaskService(),
		instance:   inst,
		gate:       admit.New(opts.Slots, opts.MaxWaiting, opts.MaxWait),
		rooms:      make(chan int, rooms),
		looked:     make(chan struct{}),
		ids:        claimed,
		notReady:   &sandbox.NotReadyError{Check: "image", Reason: "not looked for yet"},
		boxes:      map[string]*box{},
	}
	r.up, r.down = context.WithCancelCause(context.Background())
	r.pool = newPool(r)
	for i := range rooms {
		r.rooms <- i
	}
	return r, nil
}

// Execute runs one program; see sandbox.Executor.
func (r *Runner) Execute(ctx context.Context, req sandbox.Request) (*sandbox.Result, error) {
	if err := r.opts.Limits.Check(&req); err != nil {
		return nil, err
	}
	if err := r.awaitLook(ctx); err != nil {
		return nil, err
	}
	if err := r.begin(); err != nil {
		return nil, err
	}
	defer r.busy.Done()
	leave, queued, err := r.gate.Enter(ctx)
	if busy := (*admit.Busy)(nil); errors.As(err, &busy) {
		return nil, &sandbox.BusyError{Running: busy.Running, Queued: busy.Queued, Waited: busy.Waited}
	}
	if err != nil {
		return nil, fmt.Errorf("wait for a slot: %w", err)
	}
	defer leave()
	r.opts.Stage(StageQueue, queued)
	if req.Started != nil {
		req.Started()
	}
	res, err := r.serve(ctx, &req)
	// The sandbox died while it was handed out: the program goes into another.
	if errors.Is(err, errUndelivered) {
		r.log.Warn("a sandbox was dead on delivery, taking another")
		res, err = r.serve(ctx, &req)
	}
	if err != nil {
		return nil, r.fault(ctx, err)
	}
	res.Queued = queued
	r.opts.Stage(StageRun, res.Duration)
	return res, nil
}

// awaitLook waits until it is known whether programs can run: a call that comes
// while the server starts, as one that waited at its socket does, is not refused
// for that.
func (r *Runner) awaitLook(ctx context.Context) error {
	patience := time.NewTimer(r.opts.MaxWait)
	defer patience.Stop()
	select {
	case <-r.looked:
	case <-patience.C: // begin says why
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// begin enters a call, or says why none can be taken.
func (r *Runner) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if r.notReady != nil {
		return r.notReady
	}
	r.busy.Add(1)
	return nil
}

// serve runs one program in one sandbox.
func (r *Runner) serve(ctx context.Context, req *sandbox.Request) (*sandbox.Result, error) {
	b, err := r.take(ctx, req.Language)
	if err != nil {
		return nil, err
	}
	res, err := b.run(ctx, req)
	r.disposeLater(ctx, b)
	r.pool.wake()
	return res, err
}

// take returns a sandbox that waits for a program: one from the pool, or one
// made now.
func (r *Runner) take(ctx context.Context, lang sandbox.Language) (*box, error) {
	// What was ready when the call came need not be so after the queue. Only
	// what is prepared does not miss containerd.
	r.mu.Lock()
	fs, notReady, up := r.rootfs, r.notReady, r.up
	r.mu.Unlock()
	if notReady != nil && !errors.Is(notReady, errAway) {
		return nil, notReady
	}
	b := r.pool.take(ctx, lang, fs)
	r.counts.took(lang, b != nil)
	if b != nil {
		return b, nil
	}
	if notReady != nil {
		return nil, notReady
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.PrepareTimeout, errSlow)
	defer cancel()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer context.AfterFunc(up, func() { leave(context.Cause(up)) })()
	room, err := r.room(ctx)
	if err != nil {
		return nil, err
	}
	return r.obtain(ctx, lang, fs, room, nil)
}

// room waits for a room, but not for one that is closed.
func (r *Runner) room(ctx context.Context) (int, error) {
	select {
	case room := <-r.rooms:
		return room, nil
	default:
	}
	if err := r.crowded(); err != nil {
		return 0, err
	}
	select {
	case room := <-r.rooms:
		return room, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// crowded says so when sandboxes that cannot be removed leave too little room.
func (r *Runner) crowded() error {
	lost := len(r.lost())
	if 2*lost < cap(r.rooms) {
		return nil
	}
	return &sandbox.NotReadyError{Check: "host", Reason: fmt.Sprintf("%d of %d sandboxes cannot be removed; see the log, restart containerd", lost, cap(r.rooms))}
}

var (
	errSlow   = fmt.Errorf("no sandbox was ready in time: %w", sandbox.ErrUnavailable)
	errNoRoom = fmt.Errorf("no room for another sandbox now: %w", sandbox.ErrUnavailable)
)

// obtain prepares a sandbox for a caller who leaves when ctx ends; see prepare.
func (r *Runner) obtain(ctx context.Context, lang sandbox.Language, fs *rootfs, room int, adjust func(*oci.Params)) (*box, error) {
	type made struct {
		box *box
		err error
	}
	ready := make(chan made)
	r.busy.Go(func() {
		b, err := r.prepare(ctx, lang, fs, room, adjust)
		select {
		case ready <- made{b, err}:
		case <-ctx.Done(): // the caller has left
			if b != nil {
				r.disposeLater(ctx, b)
			}
		}
	})
	select {
	case m := <-ready:
		return m.box, m.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fault gives an error of ours its kind. What stands between a program and its
// sandbox is containerd or the host, unless we know better.
func (r *Runner) fault(ctx context.Context, err error) error {
	var notReady *sandbox.NotReadyError
	switch {
	case errors.As(err, &notReady), errors.Is(err, sandbox.ErrInternal):
		return err
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err // the caller left, which is nobody's fault
	case errdefs.IsUnavailable(err):
		return fmt.Errorf("%w (%w)", errAway, err)
	case errors.Is(err, sandbox.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
}

// Reasons for which no program can run.
var (
	errAway   = &sandbox.NotReadyError{Check: "containerd", Reason: "containerd does not answer; is it running?"}
	errClosed = &sandbox.NotReadyError{Check: "shutdown", Reason: "the server is shutting down"}
)

// disposeLater disposes of b off the caller's path and then gives its room
// back. A sandbox that cannot be removed is lost: it keeps its room until the
// janitor has removed it, so that nothing of it can meet a later one.
func (r *Runner) disposeLater(ctx context.Context, b *box) {
	ctx = context.WithoutCancel(ctx)
	r.mu.Lock()
	b.removing = true
	r.mu.Unlock()
	r.busy.Go(func() {
		r.gate.Calm(calmTime)
		start := time.Now()
		err := b.dispose(ctx)
		r.mu.Lock()
		b.removing, b.lost = false, err
		if err == nil {
			delete(r.boxes, b.id)
		}
		r.mu.Unlock()
		if err != nil {
			r.log.Error("sandbox not removed, its room stays closed", "sandbox", b.id, "room", b.room, "error", err)
			return
		}
		r.opts.Stage(StageDispose, time.Since(start))
		r.rooms <- b.room
		r.pool.wake()
	})
}

// lost returns the sandboxes that could not be removed.
func (r *Runner) lost() []*box {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*box
	for _, b := range r.boxes {
		if b.lost != nil {
			out = append(out, b)
		}
	}
	return out
}

// Close ends the Runner: it takes no more calls, waits for those that run and
// removes what is prepared. ctx bounds the wait; what is left then is removed
// by the next sweep.
func (r *Runner) Close(ctx context.Context) error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if again {
		return nil
	}
	r.pool.close(ctx)
	done := make(chan struct{})
	go func() {
		r.busy.Wait()
		close(done)
	}()
	// A sandbox that is left keeps its range by its processes.
	defer r.ids.release()
	select {
	case <-done:
		if n := len(r.lost()); n > 0 {
			return errors.Join(fmt.Errorf("close runner: %d sandboxes could not be removed, the next sweep tries again", n), r.instance.abandon())
		}
		// It stays while another server has sandboxes in it.
		_ = r.opts.Cgroups.Group(r.opts.CgroupParent).Remove()
		return r.instance.close()
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("close runner: %w", context.Cause(ctx)), r.instance.abandon())
	}
}

// bound keeps the limits of all sandboxes together in force. The group goes with
// the last sandbox of another server or command that ends, and the runtime would
// make it again without any.
func (r *Runner) bound() error {
	if r.opts.Total == (cgroup.Total{}) {
		return nil
	}
	r.bounding.Lock()
	defer r.bounding.Unlock()
	group := r.opts.Cgroups.Group(r.opts.CgroupParent)
	if group.Bounded(r.opts.Total) {
		return nil
	}
	return group.Bound(r.opts.Total)
}

// Load is what a Runner has to do at one moment.
type Load struct {
	// Running and Queued count calls, Prepared the sandboxes that wait for a
	// program, Quarantined those that could not be removed.
	Running, Queued, Quarantined int
	Prepared                     map[sandbox.Language]int
}

// Load tells what r has to do now.
func (r *Runner) Load() Load {
	var l Load
	l.Running, l.Queued = r.gate.Load()
	l.Prepared = r.pool.sizes()
	l.Quarantined = len(r.lost())
	return l
}

// languages returns the languages the pool keeps, in a fixed order.
func (o *Options) languages() []sandbox.Language {
	return slices.DeleteFunc(sandbox.Languages(), func(l sandbox.Language) bool { return o.Pool[l] == 0 })
}
