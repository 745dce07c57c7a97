package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// killTask sends SIGKILL to the task. One that has ended or is gone is no
// error.
func (r *Runner) killTask(ctx context.Context, id string) error {
	_, err := r.tasks.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL), All: true})
	// FailedPrecondition: the process has ended already.
	if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	return fmt.Errorf("kill task: %w", err)
}

// remove deletes what containerd and the host have of an ended sandbox. What
// is not there is no error, so it can be tried again.
func (r *Runner) remove(ctx context.Context, id string) error {
	_, err := r.tasks.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete task: %w", err)
	}
	if err := r.containers.Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete container: %w", err)
	}
	// The runtime removes the cgroup. Where it died before it could, we do.
	if err := r.removeCgroup(ctx, id); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.instance.dir, id)); err != nil {
		return fmt.Errorf("remove stream directory: %w", err)
	}
	return nil
}

// removeCgroup kills what is left in a sandbox's cgroup and removes it.
func (r *Runner) removeCgroup(ctx context.Context, id string) error {
	group := r.opts.Cgroups.Group(filepath.Join(r.opts.CgroupParent, id))
	var err error
	for group.Exists() {
		if err = group.Kill(); err != nil {
			return err
		}
		// EBUSY until the last process has been reaped.
		if err = group.Remove(); err == nil {
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

// Swept counts what a sweep removed.
type Swept struct {
	Containers, Shims, Cgroups, Directories, Snapshots int
}

// Any reports whether anything was removed.
func (s Swept) Any() bool { return s != Swept{} }

// LogValue shows the counts as attributes.
func (s Swept) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("containers", s.Containers), slog.Int("shims", s.Shims),
		slog.Int("cgroups", s.Cgroups), slog.Int("directories", s.Directories), slog.Int("snapshots", s.Snapshots))
}

// Sweep removes what instances that are dead have left behind: containers
// with their tasks, shims without a record, cgroups, FIFO directories, and
// views of images that nothing uses. It never touches what belongs to a living
// instance, or what does not carry our mark. It goes on after an error and
// returns all of them.
func (r *Runner) Sweep(ctx context.Context) (Swept, error) {
	var swept Swept
	var errs []error
	found, err := r.containers.List(ctx, fmt.Sprintf("labels.%q", labelInstance))
	if err != nil {
		return swept, fmt.Errorf("list containers: %w", err)
	}
	// An instance is dead when its lock says so, never for want of a lock: what
	// has none may belong to a server with another run directory. A container
	// names its lock itself.
	dead, alone := r.deadInstances()
	used := map[string]bool{}
	for _, c := range found {
		owner := c.Labels[labelInstance]
		if owner == r.instance.id || locked(c.Labels[labelLock]) {
			used[c.SnapshotKey] = true
			continue
		}
		dead[owner] = true
		if err := r.sweepContainer(ctx, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", c.ID, err))
			used[c.SnapshotKey] = true
			continue
		}
		swept.Containers++
	}
	errs = append(errs, r.sweepShims(dead, &swept), r.sweepCgroups(ctx, dead, &swept), r.sweepDirectories(dead, &swept))
	if alone {
		// Another instance may be about to use a view that no container uses.
		errs = append(errs, r.sweepViews(ctx, used, &swept))
	}
	return swept, errors.Join(errs...)
}

// deadInstances returns the instances of our run directory that are dead, and
// whether we are the only one alive there.
func (r *Runner) deadInstances() (dead map[string]bool, alone bool) {
	dead, alone = map[string]bool{}, true
	locks, _ := filepath.Glob(lockPath(filepath.Join(r.opts.RunDir, "*"))) // the pattern is well-formed
	for _, lock := range locks {
		id := strings.TrimSuffix(filepath.Base(lock), lockPath(""))
		switch {
		case id == r.instance.id:
		case locked(lock):
			alone = false
		default:
			dead[id] = true
		}
	}
	return dead, alone
}

func (r *Runner) sweepContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, disposeTimeout, errors.New("sweeping a sandbox took too long"))
	defer cancel()
	return r.destroy(ctx, id)
}

// destroy ends and removes a sandbox of which nothing is known but its id.
func (r *Runner) destroy(ctx context.Context, id string) error {
	if err := r.opts.Cgroups.Group(filepath.Join(r.opts.CgroupParent, id)).Kill(); err != nil {
		return err
	}
	if err := r.killTask(ctx, id); err != nil {
		return err
	}
	if _, err := r.tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: id}); err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return fmt.Errorf("await task: %w", errgrpc.ToNative(err))
	}
	return r.remove(ctx, id)
}

// instanceOf returns the instance that a sandbox's id begins with.
func instanceOf(id string) string {
	owner, _, _ := strings.Cut(id, "-")
	return owner
}

// sweepShims kills shims of ours that containerd has no record of, which a
// containerd that died within Create leaves (containerd#6860).
func (r *Runner) sweepShims(dead map[string]bool, swept *Swept) error {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, file := range procs {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
		if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") ||
			argument(args, "-namespace") != r.opts.Namespace || argument(args, "-address") != r.opts.Address ||
			!dead[instanceOf(argument(args, "-id"))] {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			swept.Shims++
		}
	}
	return nil
}

// argument returns the value that follows the flag name in args.
func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func (r *Runner) sweepCgroups(ctx context.Context, dead map[string]bool, swept *Swept) error {
	names, err := r.opts.Cgroups.Children(r.opts.CgroupParent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("sweeping cgroups took too long"))
	defer cancel()
	var errs []error
	for _, name := range names {
		if !dead[instanceOf(name)] {
			continue
		}
		if err := r.removeCgroup(ctx, name); err != nil {
			errs = append(errs, err)
			continue
		}
		swept.Cgroups++
	}
	return errors.Join(errs...)
}

func (r *Runner) sweepDirectories(dead map[string]bool, swept *Swept) error {
	var errs []error
	for id := range dead {
		path := filepath.Join(r.opts.RunDir, id)
		// The lock last: it is what says that there is something to sweep.
		if err := errors.Join(os.RemoveAll(path), os.Remove(lockPath(path))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove instance directory: %w", err))
			continue
		}
		swept.Directories++
	}
	return errors.Join(errs...)
}

// sweepViews removes our views of images that neither a container nor this
// instance uses.
//
// Preconditions: no other instance lives.
func (r *Runner) sweepViews(ctx context.Context, used map[string]bool, swept *Swept) error {
	if now := r.current(); now != nil {
		used[now.key] = true
	}
	store := r.opts.Client.SnapshotService(r.opts.Snapshotter)
	var unused []string
	err := store.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if strings.HasPrefix(info.Name, viewPrefix) && !used[info.Name] {
			unused = append(unused, info.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	var errs []error
	for _, key := range unused {
		if err := store.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove view: %w", err))
			continue
		}
		swept.Snapshots++
	}
	return errors.Join(errs...)
}
