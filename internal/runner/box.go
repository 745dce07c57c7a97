package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/capture"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/oci"
)

// Bounds of every wait on something that is not ours.
const (
	// prepareTimeout bounds the way from nothing to a waiting launcher.
	prepareTimeout = 30 * time.Second
	// removeTimeout bounds each of the two attempts to remove a sandbox. It is
	// longer than the 10 s for which the shim itself may drain the streams in
	// its Delete: with less, the runtime's delete would never run
	// (containerd#13377).
	removeTimeout = 20 * time.Second
	// killTimeout is how long a SIGKILL may take to be seen.
	killTimeout = 5 * time.Second
	// retryEvery is how often what failed for now is tried again.
	retryEvery = 200 * time.Millisecond
	// bytesPerInode lets a tmpfs hold as many files as pages, and one
	// directory: more could only be empty ones.
	bytesPerInode = 4096
	// drainGrace is how long the streams may stay open after the end.
	drainGrace = 2 * time.Second
	// endGrace is how long the end of a program's input may be on its way
	// before a wait for it is our fault.
	endGrace = 500 * time.Millisecond
)

// box is one sandbox: a container with its task, used for one program.
//
// Its life is prepare → run → dispose, or prepare → dispose when nobody needs
// it. dispose can be tried again when it fails.
type box struct {
	r        *Runner
	id       string
	language sandbox.Language
	room     int
	rootfs   *rootfs
	born     time.Time
	adjust   func(*oci.Params) // nil for none

	group cgroup.Group
	meter *cgroup.Meter // nil until the launcher waits

	dir string // holds the FIFOs, nobody else's
	streams

	// launcher and shim are process ids; zero where the runtime's process is
	// not the launcher or cannot be seen.
	launcher, shim int

	reported bool // the launcher told how its program ended

	// exited is closed once the task's end is known; exitErr then says
	// whether it could be learned. Both are nil where nobody watches.
	exited    chan struct{}
	exitErr   error
	stopWatch context.CancelCauseFunc

	// lost is what dispose failed with last, removing whether it is being
	// tried; both guarded by Runner.mu.
	lost     error
	removing bool
}

// errDisposed ends the watch over a task that is being removed.
var errDisposed = errors.New("sandbox disposed")

// prepare makes a sandbox whose launcher waits for a program. room is the
// caller's; dispose gives it back. adjust, where there is one, makes it another
// one than the options say. On error everything made so far is
// disposed of.
//
// It takes no notice of the end of ctx: a Create that is cancelled half-way
// goes on in containerd, and leaves a shim that nobody knows.
func (r *Runner) prepare(ctx context.Context, lang sandbox.Language, fs *rootfs, room int, adjust func(*oci.Params)) (*box, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), r.opts.PrepareTimeout, errors.New("preparing a sandbox took too long"))
	defer cancel()
	start := time.Now()
	b := r.box(r.instance.id + "-" + randomHex(16))
	b.language, b.room, b.rootfs, b.born, b.adjust = lang, room, fs, start, adjust
	r.mu.Lock()
	r.boxes[b.id] = b // before anything of it exists, or a sweep could take it for a stray
	r.mu.Unlock()
	if err := b.build(ctx); err != nil {
		r.doubt()
		r.disposeLater(ctx, b)
		return nil, err
	}
	r.opts.Stage(StagePrepare, time.Since(start))
	return b, nil
}

// box returns a sandbox of which only the id is known.
func (r *Runner) box(id string) *box {
	return &box{
		r: r, id: id,
		group: r.opts.Cgroups.Group(filepath.Join(r.opts.CgroupParent, id)),
		dir:   filepath.Join(r.opts.RunDir, instanceOf(id), id),
	}
}

func (b *box) build(ctx context.Context) error {
	params := b.r.opts.params(b.id, b.language, b.r.firstID(b.room))
	if b.adjust != nil {
		b.adjust(&params)
	}
	spec, err := oci.Spec(params)
	if err != nil {
		return fmt.Errorf("%w: build spec: %w", sandbox.ErrInternal, err)
	}
	anySpec, err := typeurl.MarshalAny(spec)
	if err != nil {
		return fmt.Errorf("%w: encode spec: %w", sandbox.ErrInternal, err)
	}
	if b.streams, err = openFIFOs(b.dir); err != nil {
		return err
	}
	options, err := b.r.opts.runtimeOptions(spec, b.dir)
	if err != nil {
		return err
	}
	if err := b.r.bound(); err != nil {
		return err
	}

	if _, err := b.r.containers.Create(ctx, containers.Container{
		ID:      b.id,
		Labels:  b.r.instance.labels(),
		Image:   b.rootfs.image.Name,
		Runtime: containers.RuntimeInfo{Name: b.r.opts.Runtime, Options: options},
		Spec:    anySpec,
		// The reference keeps the snapshot alive; the mounts are known.
		Snapshotter: b.r.opts.Snapshotter,
		SnapshotKey: b.rootfs.key,
	}); err != nil {
		return fmt.Errorf("create container: %w", err)
	}

	task, err := b.r.tasks.Create(ctx, &tasks.CreateTaskRequest{
		ContainerID: b.id,
		Rootfs:      b.rootfs.mounts,
		Stdin:       fifo(b.dir, 0),
		Stdout:      fifo(b.dir, 1),
		Stderr:      fifo(b.dir, 2),
	})
	if err != nil {
		return fmt.Errorf("create task: %w", errgrpc.ToNative(err))
	}
	// Before Start, or an early exit could be missed; and beyond ctx, since
	// the end of a call is not the end of its task.
	watchCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	b.stopWatch, b.exited = stop, make(chan struct{})
	go b.watch(watchCtx)
	if _, err := b.r.tasks.Start(ctx, &tasks.StartRequest{ContainerID: b.id}); err != nil {
		return fmt.Errorf("start task: %w", errgrpc.ToNative(err))
	}
	if p, ok := readProcess(int(task.Pid)); ok {
		b.launcher, b.shim = int(task.Pid), p.parent
	}
	if !b.r.opts.Relay {
		if err := b.await(ctx, pipesByte); err != nil {
			return err
		}
		if err := b.takePipes(); err != nil {
			return err
		}
	}
	if err := b.await(ctx, readyByte); err != nil {
		return err
	}
	b.meter, err = b.group.Meter()
	return err
}

// takePipes leaves the shim's FIFOs for the launcher's pipes.
func (b *box) takePipes() error {
	pipes, err := openPipes(b.launcher, func() bool {
		p, ok := readProcess(b.launcher)
		return ok && p.parent == b.shim && b.r.isShim(b.shim, b.id)
	})
	if err != nil {
		return fmt.Errorf("take the program's streams: %w", err)
	}
	b.closeStreams()
	b.streams = pipes
	if _, err := b.stdin.Write([]byte{takenByte}); err != nil {
		return fmt.Errorf("take the program's streams: %w", err)
	}
	return nil
}

// firstID returns the first of the host ids of a room, zero without user
// namespaces.
func (r *Runner) firstID(room int) uint32 {
	if r.opts.UIDBase == 0 {
		return 0
	}
	return r.ids.ranges[room]
}

// params says what a sandbox looks like whose host ids begin with firstID.
func (o *Options) params(id string, lang sandbox.Language, firstID uint32) oci.Params {
	l := &o.Limits
	p := oci.Params{
		Language:        string(lang),
		CgroupVersion:   int(o.Cgroups.Version),
		CgroupsPath:     filepath.Join(o.CgroupParent, id),
		Memory:          l.Memory,
		CPUs:            l.CPUs,
		PIDs:            l.PIDs,
		Tmp:             l.Tmp,
		Shm:             l.Shm,
		TmpInodes:       l.Tmp/bytesPerInode + 1,
		ShmInodes:       l.Shm/bytesPerInode + 1,
		MaxRuntime:      l.MaxTimeout,
		Arch:            oci.Arch(o.Arch),
		AppArmorProfile: o.AppArmorProfile,
		NoSwapLimit:     o.NoSwapLimit,
		RelayedStreams:  o.Relay,
		SecondKernel:    SecondKernel(o.Runtime),
		Preload:         o.Preload,
	}
	if firstID != 0 {
		p.UserNamespace = &oci.IDRange{HostID: firstID, Size: uidsPerSandbox}
	}
	return p
}

// Spec returns the spec that a sandbox with these options would have, for
// people to read.
func Spec(o Options, lang sandbox.Language) (*specs.Spec, error) {
	return oci.Spec(o.params("example", lang, o.UIDBase))
}

// runtimeOptions are what the shim is told beside the spec; dir is a directory of
// the sandbox's own. Relayed pipes belong to the program's user, or it could not
// open /dev/stdout and /dev/stderr again: in a user namespace the runtime itself
// cannot give them away.
func (o *Options) runtimeOptions(spec *specs.Spec, dir string) (typeurl.Any, error) {
	uid, gid := spec.Process.User.UID, spec.Process.User.GID
	if maps := spec.Linux.UIDMappings; len(maps) == 1 {
		uid += maps[0].HostID
		gid += maps[0].HostID
	}
	var options any = &runcoptions.Options{BinaryName: o.RuntimeBinary, IoUid: uid, IoGid: gid}
	if SecondKernel(o.Runtime) {
		path := filepath.Join(dir, "runsc.toml")
		text := fmt.Sprintf("binary_name = %q\nio_uid = %d\nio_gid = %d\n%s", o.RuntimeBinary, uid, gid, runscConfig)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write runtime options: %w", err)
		}
		options = &runtimeoptions.Options{TypeUrl: "io.containerd.runsc.v1.options", ConfigPath: path}
	}
	out, err := typeurl.MarshalAny(options)
	if err != nil {
		return nil, fmt.Errorf("%w: encode runtime options: %w", sandbox.ErrInternal, err)
	}
	return out, nil
}

// SecondKernel reports whether the programs of a runtime run on gVisor's kernel
// and not on the host's.
func SecondKernel(runtime string) bool { return strings.HasPrefix(runtime, "io.containerd.runsc.") }

// runscConfig are the flags of runsc that we do not leave to its defaults: no
// network stack, and no layer of its own on a root file system that is read-only.
const runscConfig = `
[runsc_config]
network = "none"
overlay2 = "none"
`

// await waits for the byte by which the launcher says how far it is.
func (b *box) await(ctx context.Context, want byte) error {
	stop := context.AfterFunc(ctx, func() { _ = b.stdout.SetReadDeadline(time.Unix(1, 0)) })
	var got [1]byte
	_, err := io.ReadFull(b.stdout, got[:])
	switch {
	case !stop(): // the deadline is in place, or about to be
		return fmt.Errorf("await launcher: %w", context.Cause(ctx))
	case err != nil || got[0] != want:
		// What it complained of stands in stderr, in an image that is not ours.
		_ = b.stderr.SetReadDeadline(time.Now().Add(drainGrace))
		why, _ := io.ReadAll(io.LimitReader(b.stderr, 256))
		return fmt.Errorf("await launcher: it ended before it was ready: %s", strings.TrimSpace(string(why)))
	}
	return nil
}

// watch follows the task to its real end. A Wait that fails with Unavailable
// tells that containerd went away, not that the task ended: the shim lives on
// and answers once containerd is back.
func (b *box) watch(ctx context.Context) {
	defer close(b.exited)
	for {
		_, err := b.r.tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: b.id})
		err = errgrpc.ToNative(err) // a raw gRPC error matches no kind
		if ctx.Err() != nil {
			b.exitErr = context.Cause(ctx)
			return
		}
		if !errdefs.IsUnavailable(err) {
			b.exitErr = err
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// alive reports whether the sandbox can take a program, and be removed after it.
func (b *box) alive() bool {
	if b.ended() {
		return false
	}
	return b.stands(true)
}

// stands reports whether the launcher, and the shim too if it is asked for, are
// there and not stopped.
func (b *box) stands(withShim bool) bool {
	if b.launcher == 0 {
		return true // nobody can tell
	}
	launcher, ok := readProcess(b.launcher)
	if !ok || launcher.parent != b.shim || !launcher.runs() {
		return false
	}
	if !withShim {
		return true
	}
	shim, ok := readProcess(b.shim)
	return ok && shim.runs()
}

// endedItself reports whether the program can have ended the whole sandbox. It can
// where it has a kernel of its own: our launcher is within its reach there, and
// the kernel itself, which ends when the host refuses it one more process. The
// shim is not.
func (b *box) endedItself() bool {
	shim, ok := readProcess(b.shim)
	return SecondKernel(b.r.opts.Runtime) && ok && shim.runs()
}

// ended reports whether the end of the task has been told.
func (b *box) ended() bool {
	select {
	case <-b.exited:
		return true
	default:
		return false
	}
}

// Reasons for which we end a program, or cannot tell how it ended.
var (
	errTimeLimit = errors.New("time limit reached")
	errLost      = fmt.Errorf("the sandbox ended without a report: %w", sandbox.ErrUnavailable)
	// errUndelivered: the sandbox was gone before the program could start.
	errUndelivered = fmt.Errorf("the sandbox took no program: %w", sandbox.ErrUnavailable)
)

// run delivers the program, waits for its end and tells how it ended.
func (b *box) run(ctx context.Context, req *sandbox.Request) (*sandbox.Result, error) {
	limits := &b.r.opts.Limits
	mark := newNonce()
	stdout, stderr := capture.New(limits.MaxOutputBytes), capture.New(limits.MaxOutputBytes)
	start := time.Now()
	runCtx, cancel := context.WithTimeoutCause(ctx, req.Timeout, errTimeLimit)
	defer cancel()

	var ending atomic.Pointer[time.Time]
	var writer sync.WaitGroup
	writer.Go(func() { b.deliver(runCtx, frame(mark, req.Code), req.Stdin, &ending) })

	var report *syscall.WaitStatus
	var readers sync.WaitGroup
	var announced bool
	readers.Go(func() { announced = b.drainStdout(stdout) })
	reported := make(chan struct{})
	readers.Go(func() {
		if report = b.drainStderr(mark, stderr); report != nil {
			close(reported)
		}
	})
	drained := make(chan struct{})
	go func() {
		readers.Wait()
		close(drained)
	}()

	var cause error // why we killed it, nil if we did not
	unclear := true // without a report we cannot say how it ended
	select {
	case <-drained:
	case <-reported: // the end of the other stream is there, too, or somebody outside holds it
	case <-b.exited:
	case <-runCtx.Done():
		cause = context.Cause(runCtx)
		// A program that may have ended long ago, or that still waits for the
		// end of its input, has not reached its limit.
		since := ending.Load()
		unclear = errors.Is(cause, errTimeLimit) && (!b.stands(b.r.opts.Relay) || since != nil && time.Since(*since) > endGrace)
		if err := b.kill(context.WithoutCancel(ctx)); err != nil {
			b.r.log.Error("kill failed", "sandbox", b.id, "error", err)
		}
	}
	select {
	case <-drained:
	case <-time.After(drainGrace):
		// Something outside the sandbox holds the streams: what was read is
		// all there will be.
	}
	duration := time.Since(start)
	used, usedErr := b.meter.Read()
	// Ends the readers and the writer whatever they wait for.
	b.cut()
	cancel()
	<-drained
	writer.Wait()

	b.reported = report != nil
	started := announced || !b.r.opts.Relay && b.started() // or about to
	switch {
	case report != nil || used.OOMKills > 0:
	case cause == nil && started && b.endedItself():
	case !started && cause == nil:
		return nil, errUndelivered
	case unclear, !started && errors.Is(cause, errTimeLimit):
		return nil, errLost
	}
	if usedErr != nil {
		b.r.log.Warn("cgroup figures unreadable", "sandbox", b.id, "error", usedErr)
	}
	res := &sandbox.Result{
		Timeout: req.Timeout, Duration: duration,
		CPUTime: used.CPUTime, PeakMemory: used.PeakMemory, OOMKilled: used.OOMKills > 0,
		OOMElsewhere: used.OOMKills > 0 && !used.LimitHit,
	}
	res.Stdout, res.StdoutHead, res.StdoutBytes = stdout.Bytes()
	res.Stderr, res.StderrHead, res.StderrBytes = stderr.Bytes()
	setEnd(res, report, cause)
	return res, nil
}

// setEnd decides how the run ended. A report is the truth wherever there is
// one: the launcher writes it only when the program has ended by itself, for
// kill ends the launcher first.
func setEnd(res *sandbox.Result, report *syscall.WaitStatus, cause error) {
	switch {
	case report != nil && report.Signaled():
		res.Status, res.Signal = sandbox.StatusSignaled, int(report.Signal())
	case report != nil:
		res.Status, res.ExitCode = sandbox.StatusExited, report.ExitStatus()
	case errors.Is(cause, errTimeLimit):
		res.Status, res.Signal = sandbox.StatusTimedOut, int(syscall.SIGKILL)
	case cause != nil:
		res.Status, res.Signal = sandbox.StatusCanceled, int(syscall.SIGKILL)
	default: // for want of memory, or with its kernel
		res.Status, res.Signal = sandbox.StatusSignaled, int(syscall.SIGKILL)
	}
	if res.Signal != 0 {
		res.ExitCode = 128 + res.Signal
	}
	if res.OOMKilled && cause == nil {
		res.Status = sandbox.StatusOutOfMemory
	}
}

// deliver writes the frame and the program's standard input, and ends it. It
// blocks while a program does not read; closing the streams and the end of ctx
// end it. ending is set while the end of file is on its way.
func (b *box) deliver(ctx context.Context, frame, stdin []byte, ending *atomic.Pointer[time.Time]) {
	// Errors say that the program does not read, which is its own affair.
	if _, err := b.stdin.Write(frame); err == nil {
		_, _ = b.stdin.Write(stdin)
	}
	_ = b.stdin.Close()
	if b.r.opts.Relay {
		since := time.Now()
		ending.Store(&since)
		if b.closeRelay(ctx) {
			ending.Store(nil)
		}
	}
}

// closeRelay makes the shim end the program's input: it holds a writing end of
// its own. While containerd is away the program has to wait for it.
func (b *box) closeRelay(ctx context.Context) (closed bool) {
	for {
		_, err := b.r.tasks.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: b.id, Stdin: true})
		if ctx.Err() == nil && !errdefs.IsUnavailable(errgrpc.ToNative(err)) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(retryEvery):
		}
	}
}

// drainStdout copies the program's standard output to out. Where the streams are
// relayed the launcher says in it that the program starts, and announced is
// whether it has: a program that takes this away shows by what it writes itself
// that it has started.
func (b *box) drainStdout(out io.Writer) (announced bool) {
	if b.r.opts.Relay {
		var first [1]byte
		if _, err := io.ReadFull(b.stdout, first[:]); err != nil {
			return false
		}
		if first[0] != startByte {
			_, _ = out.Write(first[:])
		}
		announced = true
	}
	_, _ = io.Copy(out, b.stdout)
	return announced
}

// drainStderr copies the program's standard error to out and returns the
// launcher's report, nil if the stream ended without one.
func (b *box) drainStderr(mark nonce, out *capture.Buffer) *syscall.WaitStatus {
	held := capture.NewSuffix(out, reportSize)
	buf := make([]byte, 32<<10)
	for {
		n, err := b.stderr.Read(buf)
		_, _ = held.Write(buf[:n])
		// Nothing can follow a report: every process of the sandbox but the
		// launcher is dead.
		if status, ok := parseReport(mark, held.Held()); ok {
			return &status
		}
		if err != nil {
			held.Flush()
			return nil
		}
	}
}

// kill ends every process of the sandbox. It needs containerd only where the
// cgroup cannot do it.
//
// The launcher goes first. A cgroup is killed process by process: a launcher
// that sees its program killed before it is itself would report an end that
// was ours as the program's own.
func (b *box) kill(ctx context.Context) error {
	if p, ok := readProcess(b.launcher); ok && b.launcher != 0 && p.parent == b.shim {
		_ = syscall.Kill(b.launcher, syscall.SIGKILL) // the cgroup has it, too
	}
	err := b.group.Kill()
	if err == nil {
		return nil
	}
	if taskErr := b.killTask(ctx); taskErr != nil {
		return errors.Join(err, taskErr)
	}
	return nil
}

// killTask sends SIGKILL to the task. One that has ended or is gone is no
// error.
func (b *box) killTask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("kill was not answered"))
	defer cancel()
	_, err := b.r.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: b.id, Signal: uint32(syscall.SIGKILL), All: true})
	// FailedPrecondition: the process has ended already.
	if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	return fmt.Errorf("kill task: %w", err)
}

// dispose removes every trace of the sandbox, whatever state it is in. What is
// not there is no error, so it can be tried again. It escalates: SIGKILL to
// every process in the cgroup, then to the shim.
//
// Preconditions: ctx outlives the call that the sandbox worked for.
func (b *box) dispose(ctx context.Context) error {
	b.closeStreams() // the launcher has waited for this after its report
	if b.meter != nil {
		b.meter.Close()
	}
	if b.exited != nil {
		defer b.stopWatch(errDisposed)
		b.awaitExit(ctx)
	}
	err := b.remove(ctx)
	if err == nil && b.awaitShim(ctx) {
		if b.shim == 0 {
			return nil // remove has seen to it, or the sweep will
		}
		return b.removeLeavings() // what ended after remove had looked
	}
	if pingErr := b.r.ping(ctx); pingErr != nil {
		return errors.Join(err, pingErr) // the shim is not to blame
	}
	n, killErr := killShims(b.r.shims(func(id string) bool { return id == b.id }))
	if n > 0 {
		b.r.log.Warn("killed a shim that did not do its work", "sandbox", b.id, "error", err)
		err = b.remove(ctx)
	}
	if err := errors.Join(err, killErr); err != nil {
		return err
	}
	return b.removeLeavings()
}

// awaitShim waits for the end of the shim, which has nothing left to do.
func (b *box) awaitShim(ctx context.Context) bool {
	for deadline := time.Now().Add(killTimeout); b.shim != 0 && b.r.isShim(b.shim, b.id); {
		if time.Now().After(deadline) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// awaitExit ends the sandbox and waits for the news, but not for long: remove
// can do without, it only has to ask again and again.
func (b *box) awaitExit(ctx context.Context) {
	if !b.reported { // else the launcher has ended by itself when the streams were closed
		_ = b.group.Kill() // remove does it again, and tells
	}
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	select {
	case <-b.exited:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// remove ends the sandbox and removes what containerd and the host have of it.
// It tries again until removeTimeout.
func (b *box) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, removeTimeout, errors.New("it took too long"))
	defer cancel()
	for {
		err := b.tryRemove(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove sandbox: %w: %w", context.Cause(ctx), err)
		case <-time.After(retryEvery):
		}
	}
}

func (b *box) tryRemove(ctx context.Context) error {
	if err := b.group.Kill(); err != nil {
		return err
	}
	if !b.ended() || b.exitErr != nil {
		if err := b.killTask(ctx); err != nil {
			return err
		}
	}
	// FailedPrecondition while it runs.
	_, err := b.r.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: b.id})
	err = errgrpc.ToNative(err)
	gone := err == nil
	if errdefs.IsNotFound(err) {
		err = unmount("/" + b.r.opts.Namespace + "/" + b.id + "/rootfs")
		// A shim without a record may be about to make the sandbox; the sweep
		// ends it.
		gone = !b.r.hasShim(b.id)
	}
	if err != nil {
		return fmt.Errorf("delete task: %w", err)
	}
	if gone {
		if err := b.removeLeavings(); err != nil {
			return err
		}
	}
	if err := b.r.containers.Delete(ctx, b.id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete container: %w", err)
	}
	// The runtime removes the cgroup. Where it died before it could, we do.
	if err := removeGroup(ctx, b.group); err != nil {
		return err
	}
	if err := daemon.RemoveFlat(b.dir); err != nil {
		return fmt.Errorf("remove stream directory: %w", err)
	}
	return nil
}

// removeLeavings removes what the shim and the runtime leave of the sandbox
// outside of containerd's own directories when they are killed.
func (b *box) removeLeavings() error {
	return daemon.RemoveLeavings(b.r.opts.Address, b.r.opts.Namespace, b.id)
}

// unmount removes the mounts whose path ends in suffix, which names one sandbox.
// A shim that is killed within its Delete leaves a root file system mounted that
// containerd has no record of before its next start.
func unmount(suffix string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		// proc_pid_mountinfo(5): field 5 is the mount point.
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasSuffix(fields[4], suffix) {
			continue
		}
		err := unix.Unmount(fields[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// A confined server may not. Nothing is removed through the mount, so it
		// can stay for the sweep that ends the service, or containerd's next start.
		if err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("unmount %s: %w", fields[4], err)
		}
	}
	return nil
}

// removeGroup kills what is left in a cgroup and removes it.
func removeGroup(ctx context.Context, group cgroup.Group) error {
	for group.Exists() {
		if err := group.Kill(); err != nil {
			return err
		}
		// EBUSY until the last process has been reaped.
		err := group.Remove()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
