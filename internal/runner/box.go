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
	"sync"
	"syscall"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/capture"
	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/oci"
)

// Bounds of every wait on something that is not ours.
const (
	// prepareTimeout bounds the way from nothing to a waiting launcher.
	prepareTimeout = 30 * time.Second
	// disposeTimeout is longer than the 10 s for which the shim itself may
	// drain the streams in its Delete: with less, the runtime's delete would
	// never run (containerd#13377).
	disposeTimeout = 45 * time.Second
	// killTimeout is how long a SIGKILL may take to be seen.
	killTimeout = 10 * time.Second
	// retryEvery is how often a containerd that is away is asked again.
	retryEvery = 200 * time.Millisecond
	// bytesPerInode lets a tmpfs hold as many files as pages, and one
	// directory: more could only be empty ones.
	bytesPerInode = 4096
	// drainGrace is how long the streams may stay open after the end.
	drainGrace = 2 * time.Second
)

// box is one sandbox: a container with its task, used for one program.
//
// Its life is prepare → run → dispose, or prepare → dispose when nobody needs
// it. dispose is called exactly once, whatever happened before.
type box struct {
	r        *Runner
	id       string
	language sandbox.Language
	room     int
	rootfs   *rootfs
	born     time.Time

	group cgroup.Group
	meter *cgroup.Meter // nil until the launcher waits

	dir                   string // holds the FIFOs, nobody else's
	stdin, stdout, stderr *os.File

	reported bool // the launcher told how its program ended

	// exited is closed once the task's end is known; exitErr then says
	// whether it could be learned.
	exited    chan struct{}
	exitErr   error
	stopWatch context.CancelCauseFunc
}

// errDisposed ends the watch over a task that is being removed.
var errDisposed = errors.New("sandbox disposed")

// prepare makes a sandbox whose launcher waits for a program. room is the
// caller's; dispose gives it back. On error everything made so far is
// disposed of.
//
// It takes no notice of the end of ctx: a Create that is cancelled half-way
// goes on in containerd, and leaves a shim that nobody knows.
func (r *Runner) prepare(ctx context.Context, lang sandbox.Language, fs *rootfs, room int) (*box, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), prepareTimeout, errors.New("preparing a sandbox took too long"))
	defer cancel()
	start := time.Now()
	id := r.instance.id + "-" + randomHex(12)
	b := &box{
		r: r, id: id, language: lang, room: room, rootfs: fs, born: start,
		group:  r.opts.Cgroups.Group(filepath.Join(r.opts.CgroupParent, id)),
		dir:    filepath.Join(r.instance.dir, id),
		exited: make(chan struct{}),
	}
	if err := b.build(ctx); err != nil {
		r.disposeLater(ctx, b)
		return nil, err
	}
	r.opts.Stage(StagePrepare, time.Since(start))
	return b, nil
}

func (b *box) build(ctx context.Context) error {
	spec, err := oci.Spec(b.r.opts.params(b.id, b.language, b.room))
	if err != nil {
		return fmt.Errorf("build spec: %w", err)
	}
	anySpec, err := typeurl.MarshalAny(spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	options, err := typeurl.MarshalAny(b.r.opts.runtimeOptions(spec))
	if err != nil {
		return fmt.Errorf("encode runtime options: %w", err)
	}
	if err := b.openStreams(); err != nil {
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

	if _, err := b.r.tasks.Create(ctx, &tasks.CreateTaskRequest{
		ContainerID: b.id,
		Rootfs:      b.rootfs.mounts,
		Stdin:       b.stdin.Name(),
		Stdout:      b.stdout.Name(),
		Stderr:      b.stderr.Name(),
	}); err != nil {
		return fmt.Errorf("create task: %w", errgrpc.ToNative(err))
	}
	// Before Start, or an early exit could be missed; and beyond ctx, since
	// the end of a call is not the end of its task.
	watchCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	b.stopWatch = stop
	go b.watch(watchCtx)
	if _, err := b.r.tasks.Start(ctx, &tasks.StartRequest{ContainerID: b.id}); err != nil {
		return fmt.Errorf("start task: %w", errgrpc.ToNative(err))
	}
	if err := b.awaitLauncher(ctx); err != nil {
		return err
	}
	if b.meter, err = b.group.Meter(); err != nil {
		return err
	}
	return nil
}

// params says what the sandbox in a room looks like.
func (o *Options) params(id string, lang sandbox.Language, room int) oci.Params {
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
	}
	if o.UIDBase != 0 {
		p.UserNamespace = &oci.IDRange{HostID: o.UIDBase + uint32(room)*uidsPerSandbox, Size: uidsPerSandbox} //nolint:gosec // checked in New
	}
	return p
}

// Spec returns the spec that a sandbox with these options would have, for
// people to read.
func Spec(o Options, lang sandbox.Language) (*specs.Spec, error) {
	return oci.Spec(o.params("example", lang, 0))
}

// runtimeOptions are those of the runc shim; others know them too. The pipes of
// the program belong to its user, or it could not open /dev/stdout and
// /dev/stderr again: in a user namespace the runtime itself cannot give them
// away.
func (o *Options) runtimeOptions(spec *specs.Spec) *runcoptions.Options {
	out := &runcoptions.Options{BinaryName: o.RuntimeBinary, IoUid: spec.Process.User.UID, IoGid: spec.Process.User.GID}
	if maps := spec.Linux.UIDMappings; len(maps) == 1 {
		out.IoUid += maps[0].HostID
		out.IoGid += maps[0].HostID
	}
	return out
}

// openStreams makes the FIFOs and opens our ends. None of the opens blocks:
// the reading ends do not wait for the shim, and stdin is opened for both
// directions because a writer alone would have to come after the reader. Our
// own reading end of stdin is closed with it, so it hides no end of file.
func (b *box) openStreams() error {
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return fmt.Errorf("create stream directory: %w", err)
	}
	for _, s := range []struct {
		name string
		file **os.File
		mode int
	}{
		{"stdin", &b.stdin, os.O_RDWR},
		{"stdout", &b.stdout, os.O_RDONLY},
		{"stderr", &b.stderr, os.O_RDONLY},
	} {
		path := filepath.Join(b.dir, s.name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return fmt.Errorf("create %s fifo: %w", s.name, err)
		}
		f, err := os.OpenFile(path, s.mode|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open %s fifo: %w", s.name, err)
		}
		*s.file = f
	}
	return nil
}

// awaitLauncher waits for the byte that says the launcher waits for a program.
func (b *box) awaitLauncher(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = b.stdout.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var got [1]byte
	_, err := io.ReadFull(b.stdout, got[:])
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("await launcher: %w", context.Cause(ctx))
	case err != nil || got[0] != readyByte:
		// What it complained of stands in stderr, in an image that is not ours.
		_ = b.stderr.SetReadDeadline(time.Now().Add(drainGrace))
		why, _ := io.ReadAll(io.LimitReader(b.stderr, 256))
		return fmt.Errorf("await launcher: it ended before it was ready: %q", why)
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

// alive reports whether a prepared sandbox can still take a program.
func (b *box) alive() bool {
	select {
	case <-b.exited:
		return false
	default:
		return true
	}
}

// Reasons for which we end a program.
var (
	errTimeLimit = errors.New("time limit reached")
	errLost      = fmt.Errorf("the sandbox ended without a report: %w", sandbox.ErrUnavailable)
)

// run delivers the program, waits for its end and tells how it ended.
func (b *box) run(ctx context.Context, req *sandbox.Request) (*sandbox.Result, error) {
	limits := &b.r.opts.Limits
	mark := newNonce()
	stdout, stderr := capture.New(limits.MaxOutputBytes), capture.New(limits.MaxOutputBytes)
	start := time.Now()
	runCtx, cancel := context.WithTimeoutCause(ctx, req.Timeout, errTimeLimit)
	defer cancel()

	var writer sync.WaitGroup
	writer.Go(func() { b.feed(runCtx, mark, req) })

	var report *syscall.WaitStatus
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(stdout, b.stdout) })
	readers.Go(func() { report = b.drainStderr(mark, stderr) })
	drained := make(chan struct{})
	go func() {
		readers.Wait()
		close(drained)
	}()

	var cause error // why we killed it, nil if we did not
	select {
	case <-drained:
	case <-b.exited:
	case <-runCtx.Done():
		cause = context.Cause(runCtx)
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
	b.closeStreams()
	cancel()
	<-drained
	writer.Wait()

	b.reported = report != nil
	if report == nil && cause == nil && used.OOMKills == 0 {
		return nil, errLost
	}
	if usedErr != nil {
		b.r.log.Warn("cgroup figures unreadable", "sandbox", b.id, "error", usedErr)
	}
	res := &sandbox.Result{
		Timeout: req.Timeout, Duration: duration,
		CPUTime: used.CPUTime, PeakMemory: used.PeakMemory, OOMKilled: used.OOMKills > 0,
	}
	res.Stdout, res.StdoutHead, res.StdoutBytes = stdout.Bytes()
	res.Stderr, res.StderrHead, res.StderrBytes = stderr.Bytes()
	setEnd(res, report, cause)
	return res, nil
}

// setEnd decides how the run ended. A report is the truth wherever there is
// one: the launcher writes it only when the program has ended by itself.
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
	default:
		res.Signal = int(syscall.SIGKILL)
	}
	if res.Signal != 0 {
		res.ExitCode = 128 + res.Signal
	}
	if res.OOMKilled && cause == nil {
		res.Status = sandbox.StatusOutOfMemory
	}
}

// feed writes the frame and the program's standard input and ends it. It
// blocks while a program does not read; closeStreams and the end of ctx end it.
func (b *box) feed(ctx context.Context, mark nonce, req *sandbox.Request) {
	// Errors say that the program does not read, which is its own affair.
	_, err := b.stdin.Write(frame(mark, req.Code))
	if err == nil && len(req.Stdin) > 0 {
		_, _ = b.stdin.Write(req.Stdin)
	}
	_ = b.stdin.Close()
	// The shim holds a writing end of its own, so our Close alone is no end of
	// file. While containerd is away the program has to wait for it.
	for {
		_, err := b.r.tasks.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: b.id, Stdin: true})
		if !errdefs.IsUnavailable(errgrpc.ToNative(err)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryEvery):
		}
	}
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
func (b *box) kill(ctx context.Context) error {
	err := b.group.Kill()
	if err == nil {
		return nil
	}
	if taskErr := b.killTask(ctx); taskErr != nil {
		return errors.Join(err, taskErr)
	}
	return nil
}

func (b *box) killTask(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("kill was not answered"))
	defer cancel()
	return b.r.killTask(ctx, b.id)
}

func (b *box) closeStreams() {
	for _, f := range []*os.File{b.stdin, b.stdout, b.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// dispose removes every trace of the sandbox. NotFound is success throughout,
// so it can be tried again.
//
// Preconditions: ctx outlives the call that the sandbox worked for.
func (b *box) dispose(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, disposeTimeout, errors.New("disposing of a sandbox took too long"))
	defer cancel()
	b.closeStreams()
	if b.meter != nil {
		b.meter.Close()
	}
	if b.stopWatch == nil {
		// Create failed, but containerd may have come further than we know.
		return b.r.destroy(ctx, b.id)
	}
	defer b.stopWatch(errDisposed)
	if err := b.end(ctx); err != nil {
		return err
	}
	return b.r.remove(ctx, b.id)
}

// end makes sure that no process of the sandbox runs any more.
func (b *box) end(ctx context.Context) error {
	if !b.reported {
		if err := b.kill(ctx); err != nil {
			return err
		}
	}
	// After a report the launcher is just about to end by itself.
	if b.awaitExit(ctx, killTimeout) {
		return nil
	}
	if err := b.killTask(ctx); err != nil {
		return err
	}
	if !b.awaitExit(ctx, killTimeout) {
		return fmt.Errorf("sandbox %s survives SIGKILL", b.id)
	}
	return nil
}

func (b *box) awaitExit(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.exited:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
