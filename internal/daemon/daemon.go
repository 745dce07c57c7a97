// Package daemon finds a containerd to work with, and runs a private one as a
// supervised child for hosts without one and for tests.
//
// A private daemon is ours alone and all of it can be thrown away, except that
// its images cost time to import again. It ends with this process, however
// that ends; what it left running then is ended by the next Start.
package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	startTimeout = 30 * time.Second
	// stopTimeout is how long the daemon has for SIGTERM before SIGKILL.
	stopTimeout = 10 * time.Second
	// emptyTimeout bounds ending what still runs; a shim alone may drain its
	// streams for 10 s (containerd#12364).
	emptyTimeout = 30 * time.Second
	// The delay before a restart doubles from the first to the last, and starts
	// over when the daemon has lived for steady.
	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
	steady     = time.Minute

	// systemPath is searched after PATH, which may lack where runc is.
	systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	// maxSocketPath is what fits in sun_path (unix(7)), its final zero excluded.
	maxSocketPath = 107
	// shimSocketName is the length of a shim socket's file name: a SHA-256 in
	// hex (core/runtime/v2 in containerd).
	shimSocketName = 64
)

// ErrInUse says that another process runs a private daemon on the same Root;
// whoever only needs a containerd can use that one.
var ErrInUse = errors.New("in use by another process")

// Options say where and how a private daemon runs.
type Options struct {
	// Binary is the path of containerd; empty means the one in PATH. Its shim
	// and runc are looked for beside it first, then in PATH: a shim must have
	// the daemon's version.
	Binary string
	// Root holds what outlives a restart, above all the image. Required. One
	// process at a time can use it.
	Root string
	// State holds sockets and the bundles of running containers, best on a
	// tmpfs. Required. It is emptied by Stop.
	State string
	// Socket is the address to serve, empty means containerd.sock in State. It
	// must be short: a socket's path has 107 bytes at most.
	Socket string
	// Snapshotter must work, or Start fails. Empty means overlayfs.
	Snapshotter string
	// NoSync saves the disk flushes of the metadata (containerd 2.1 and newer;
	// older ones go on flushing). In exchange Root is emptied when the host
	// went down without a Stop, since the metadata may then be damaged.
	NoSync bool
	// Logger is told of restarts and of containerd's own warnings. Nil discards.
	Logger *slog.Logger
}

// Daemon is a running private containerd.
type Daemon struct {
	opts    Options
	log     *slog.Logger
	version string
	lock    *os.File // flock on Root

	stop     chan struct{} // closed by Stop
	done     chan struct{} // closed when the child has ended for good
	stopOnce sync.Once
	stopErr  error // written once, before Stop returns

	mu      sync.Mutex
	process *os.Process // guarded by mu: the child, nil between two of them
	tail    []string    // guarded by mu: the last warnings of the child
}

// Start starts a private containerd and returns once it serves and its
// snapshotter works. ctx bounds the start only. Whatever an earlier instance
// with the same Root and State left running has been ended by then.
func Start(ctx context.Context, opts Options) (_ *Daemon, err error) {
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	d := &Daemon{opts: opts, log: opts.Logger, stop: make(chan struct{}), done: make(chan struct{})}
	if err := d.prepare(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not serve"))
	defer cancel()
	ctx, died := context.WithCancelCause(ctx)
	defer died(nil)
	go d.supervise(died)
	if err := d.settle(ctx); err != nil {
		err = fmt.Errorf("start containerd %s: %w", opts.Binary, err)
		return nil, errors.Join(err, d.Stop(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// Address is the socket that the daemon serves, the same over all restarts.
func (d *Daemon) Address() string { return d.opts.Socket }

// Version is what the daemon says of itself; it need not be a semantic version.
func (d *Daemon) Version() string { return d.version }

// PID is the process id of the daemon, 0 while it is being restarted.
func (d *Daemon) PID() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process == nil {
		return 0
	}
	return d.process.Pid
}

// complete fills in defaults and refuses what cannot work.
func (o *Options) complete() error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Snapshotter == "" {
		o.Snapshotter = "overlayfs"
	}
	if o.Binary == "" {
		o.Binary = "containerd"
	}
	var err error
	if o.Binary, err = exec.LookPath(o.Binary); err != nil {
		return fmt.Errorf("%w: install containerd", err)
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return err
	}
	if !filepath.IsAbs(o.Root) || !filepath.IsAbs(o.State) || filepath.Clean(o.Root) == filepath.Clean(o.State) {
		return fmt.Errorf("root %q and state %q must be two absolute paths", o.Root, o.State)
	}
	if o.Socket == "" {
		o.Socket = filepath.Join(o.State, "containerd.sock")
	}
	if len(o.Socket+".ttrpc") > maxSocketPath {
		return fmt.Errorf("socket path %s is too long: choose a shorter state directory", o.Socket)
	}
	return nil
}

func (o *Options) configPath() string { return filepath.Join(o.State, "containerd.toml") }
func (o *Options) pidPath() string    { return filepath.Join(o.State, "containerd.pid") }
func (o *Options) bootPath() string   { return filepath.Join(o.Root, "nosync.boot") }

// prepare takes the directories, ends an earlier daemon and writes the config.
func (d *Daemon) prepare() (err error) {
	for dir, mode := range map[string]fs.FileMode{d.opts.Root: 0o700, d.opts.State: 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask
			return err
		}
	}
	// The lock is ours and not the child's: handed on, it would reach shims
	// and sandboxes.
	d.lock, err = os.OpenFile(filepath.Join(d.opts.Root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s: %w", d.opts.Root, ErrInUse)
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", d.opts.Root, err)
	}
	if err := d.endPrevious(); err != nil {
		return err
	}
	if err := d.checkBoot(); err != nil {
		return err
	}
	file, err := os.OpenFile(d.opts.configPath(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(writeConfig(file, d.opts), file.Close())
}

// endPrevious kills a daemon that outlived its parent. Pdeathsig makes that
// next to impossible; two daemons on one Root would be worse.
func (d *Daemon) endPrevious() error {
	text, err := os.ReadFile(d.opts.pidPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return os.Remove(d.opts.pidPath())
	}
	process, err := os.FindProcess(pid) // a pidfd: the pid cannot pass to another
	if err != nil {
		return nil
	}
	defer func() { _ = process.Release() }()
	if !slices.Contains(arguments(pid), d.opts.configPath()) {
		return nil
	}
	d.log.Warn("ending the containerd of an earlier instance", "pid", pid)
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end earlier containerd: %w", err)
	}
	// A zombie, for want of a parent that cares, has no arguments either.
	for deadline := time.Now().Add(stopTimeout); len(arguments(pid)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("earlier containerd (pid %d) survives SIGKILL", pid)
		}
	}
	return nil
}

// checkBoot empties Root when it was written without syncs and the kernel that
// held the writes is gone.
func (d *Daemon) checkBoot() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	last, err := os.ReadFile(d.opts.bootPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && string(last) != string(boot) {
		d.log.Warn("host went down with unsynced metadata: starting over, the image must be imported again", "root", d.opts.Root)
		entries, err := os.ReadDir(d.opts.Root)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if entry.Name() == "lock" {
				continue
			}
			if err := os.RemoveAll(filepath.Join(d.opts.Root, entry.Name())); err != nil {
				return err
			}
		}
	}
	if !d.opts.NoSync {
		return nil
	}
	file, err := os.OpenFile(d.opts.bootPath(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(boot)
	return errors.Join(err, file.Sync(), file.Close())
}

// config is written in version 2, which every daemon from 1.3 on reads and the
// newer ones migrate. Plugins and keys that a version does not know are
// ignored by it (started with 1.6.20 and 2.3.7). What is switched off listens
// on TCP or on paths of the host's own daemon, or does nothing for us.
var config = template.Must(template.New("").Funcs(template.FuncMap{"quote": tomlString}).Parse(`version = 2
root = {{quote .Root}}
state = {{quote .State}}
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.podsandbox.controller.v1.podsandbox",
  "io.containerd.nri.v1.nri",
  "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.restart",
  "io.containerd.monitor.container.v1.restart",
]

[grpc]
  address = {{quote .Socket}}

[debug]
  level = "warn"
  format = "json"
{{- if .NoSync}}

[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
{{- end}}
{{- with .ShimSockets}}

# From 2.3 on; older shims use /run/containerd/s whatever the state directory.
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {{quote .}}
{{- end}}
`))

func writeConfig(w io.Writer, opts Options) error {
	values := struct {
		Options
		ShimSockets string
	}{Options: opts}
	if dir := filepath.Join(opts.State, privateShimSockets); len(dir)+1+shimSocketName <= maxSocketPath {
		values.ShimSockets = dir
	}
	return config.Execute(w, values)
}

// tomlString quotes a path as a TOML basic string, which JSON's form is too.
func tomlString(path string) (string, error) {
	quoted, err := json.Marshal(path)
	return string(quoted), err
}

// supervise keeps a child running until Stop. died is called when the first
// child ends.
func (d *Daemon) supervise(died context.CancelCauseFunc) {
	defer close(d.done)
	// Pdeathsig goes out when the thread that forked ends, not the process
	// (go.dev/issue/27505): this thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		began := time.Now()
		err := d.run()
		died(err)
		if time.Since(began) >= steady {
			delay = firstDelay
		}
		select {
		case <-d.stop:
			return
		default:
		}
		d.log.Error("containerd ended, restarting it", "error", err, "delay", delay)
		select {
		case <-d.stop:
			return
		case <-time.After(delay):
		}
	}
}

// run runs one child to its end and says how it ended.
func (d *Daemon) run() error {
	cmd := exec.Command(d.opts.Binary, "--config", d.opts.configPath()) //nolint:noctx // it lives until Stop, and has its own way to end
	cmd.Dir = "/"
	// Nothing of our own environment: it holds the token, and NOTIFY_SOCKET
	// and LISTEN_FDS, with which the child would speak for us.
	path := filepath.Dir(d.opts.Binary)
	if own := os.Getenv("PATH"); own != "" {
		path += ":" + own
	}
	cmd.Env = []string{"PATH=" + path + ":" + systemPath}
	// A session of its own: ^C is for us, who then stop it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	output := &journal{daemon: d}
	cmd.Stderr = output
	// A grandchild may hold the stream; that must not delay the restart.
	cmd.WaitDelay = time.Second
	if err := os.Remove(d.opts.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	err := cmd.Start()
	if err == nil {
		d.process, d.tail = cmd.Process, nil
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	// A Stop that came just before this child must not wait for the next.
	select {
	case <-d.stop:
		_ = cmd.Process.Signal(syscall.SIGTERM)
	default:
	}
	if err := os.WriteFile(d.opts.pidPath(), fmt.Append(nil, cmd.Process.Pid, "\n"), 0o600); err != nil {
		d.log.Error("cannot write containerd's pid", "error", err)
	}
	err = cmd.Wait()
	output.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.process = nil
	if err == nil {
		err = errors.New("exit status 0")
	}
	if len(d.tail) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(d.tail, "; "))
	}
	return err
}

// journal passes on what one child writes to its standard error, by lines.
type journal struct {
	daemon *Daemon
	rest   []byte // the line begun last
}

// maxLine bounds one line; what goes beyond it is another.
const maxLine = 64 << 10

func (j *journal) Write(p []byte) (int, error) {
	j.rest = append(j.rest, p...)
	for {
		line, rest, found := bytes.Cut(j.rest, []byte("\n"))
		if !found && len(j.rest) < maxLine {
			return len(p), nil
		}
		j.line(string(line))
		j.rest = rest
	}
}

// textLevel finds the level in a line of logrus's text format.
var textLevel = regexp.MustCompile(`(?:^| )level=([a-z]+) `)

// end passes on a line without an end.
func (j *journal) end() { j.line(string(j.rest)) }

func (j *journal) line(text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	var entry struct{ Level, Msg, Error string }
	if json.Unmarshal([]byte(text), &entry) == nil && entry.Msg != "" {
		text = entry.Msg
		if entry.Error != "" {
			text += ": " + entry.Error
		}
	} else if match := textLevel.FindStringSubmatch(text); match != nil {
		// Shims, and containerd before its format is set.
		entry.Level = match[1]
	}
	level := slog.LevelWarn
	switch entry.Level {
	case "debug", "info", "warning": // every start has some warnings, every sandbox tells of its shim
		level = slog.LevelDebug
	}
	d := j.daemon
	d.log.Log(context.Background(), level, "containerd says", "text", text)
	if level < slog.LevelWarn {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tail = append(d.tail[max(0, len(d.tail)-4):], text)
}

// settle waits until the daemon serves, checks it, and ends what runs in it.
func (d *Daemon) settle(ctx context.Context) error {
	// The client would wait a second before it tries again.
	for dial(ctx, d.opts.Socket) != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	client, err := containerd.New(d.opts.Socket)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := serving(ctx, client); err != nil {
		return err
	}
	version, err := client.Version(ctx)
	if err != nil {
		return fmt.Errorf("ask for its version: %w", err)
	}
	d.version = version.Version
	plugins, err := client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+d.opts.Snapshotter)
	if err != nil {
		return fmt.Errorf("ask for its snapshotter: %w", err)
	}
	if len(plugins.Plugins) == 0 {
		return fmt.Errorf("it has no snapshotter %s", d.opts.Snapshotter)
	}
	if status := plugins.Plugins[0].InitErr; status != nil {
		return fmt.Errorf("its snapshotter %s does not work: %s", d.opts.Snapshotter, status.Message)
	}
	return empty(ctx, client)
}

// empty ends and removes every container of every namespace.
func empty(ctx context.Context, client *containerd.Client) error {
	names, err := client.NamespaceService().List(ctx)
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	var errs []error
	for _, name := range names {
		ctx := namespaces.WithNamespace(ctx, name)
		containers, err := client.Containers(ctx)
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		for _, container := range containers {
			if err := remove(ctx, container); err != nil {
				errs = append(errs, fmt.Errorf("remove container %s: %w", container.ID(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func remove(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	err = container.Delete(ctx, containerd.WithSnapshotCleanup)
	if errdefs.IsNotFound(err) { // the snapshot; without its help, the container
		err = container.Delete(ctx)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Stop ends everything that runs in the daemon, then the daemon, and removes
// its sockets and its state. Root stays. It may be called more than once.
func (d *Daemon) Stop(ctx context.Context) error {
	d.stopOnce.Do(func() {
		if err := d.end(ctx); err != nil {
			d.stopErr = fmt.Errorf("stop containerd: %w", err)
		}
	})
	return d.stopErr
}

func (d *Daemon) end(ctx context.Context) error {
	defer d.lock.Close()
	d.drain(ctx)
	close(d.stop)
	d.signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-ctx.Done():
	case <-time.After(stopTimeout):
	}
	d.signal(syscall.SIGKILL)
	select {
	case <-d.done:
	case <-time.After(stopTimeout):
		return errors.New("it survives SIGKILL")
	}
	errs := []error{killShims(d.opts.Socket)}
	for _, dir := range []string{d.opts.State, d.opts.Root} {
		if err := mount.UnmountRecursive(dir, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // nothing may be deleted through a mount
	}
	for _, path := range []string{d.opts.Socket, d.opts.Socket + ".ttrpc", d.opts.bootPath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(d.opts.State))...)
}

// drain ends what runs in the daemon, the orderly way. What it misses is for
// killShims.
func (d *Daemon) drain(ctx context.Context) {
	if d.PID() == 0 || d.version == "" { // it is not up, or never was
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, emptyTimeout, errors.New("containers do not end"))
	defer cancel()
	client, err := containerd.New(d.opts.Socket)
	if err == nil {
		defer client.Close()
		if err = dial(ctx, d.opts.Socket); err == nil {
			err = empty(ctx, client)
		}
	}
	if err != nil {
		d.log.Warn("containers could not be ended in order", "error", err)
	}
}

func (d *Daemon) signal(sig syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process != nil {
		_ = d.process.Signal(sig) // it may just have ended
	}
}

// killShims kills the shims that serve the daemon at socket, and first their
// containers, whose other processes end with the first one.
func killShims(socket string) error {
	pids, err := processes()
	if err != nil {
		return err
	}
	shims := map[int][]string{} // pid to arguments
	for _, pid := range pids {
		args := arguments(pid)
		if flag(args, "-address") == socket && strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") {
			shims[pid] = args
		}
	}
	var doomed []int
	for _, pid := range pids {
		if shims[parentOf(pid)] != nil {
			doomed = append(doomed, pid)
		}
	}
	doomed = slices.AppendSeq(doomed, maps.Keys(shims))
	var errs []error
	for _, pid := range doomed {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
		}
	}
	for deadline := time.Now().Add(stopTimeout); ; time.Sleep(10 * time.Millisecond) {
		doomed = slices.DeleteFunc(doomed, func(pid int) bool { return len(arguments(pid)) == 0 })
		if len(doomed) == 0 {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("processes %d survive SIGKILL", doomed))
			break
		}
	}
	for _, args := range shims {
		if namespace, id := flag(args, "-namespace"), flag(args, "-id"); namespace != "" && id != "" {
			errs = append(errs, RemoveLeavings(socket, namespace, id))
		}
	}
	return errors.Join(errs...)
}

// flag is the value that follows name in args.
func flag(args []string, name string) string {
	if at := slices.Index(args, name); at > 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

// processes lists the process ids of the host.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// arguments is the command line of a process, empty when it is gone.
func arguments(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// parentOf is the parent of a process, 0 when it is gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// pid (name) state ppid …; the name may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
