package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"code-execution-sandbox/internal/daemon"
)

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

// Sweep removes what nobody owns: what instances that are dead have left
// behind, and what containerd made for this one after it had been given up.
// That is containers with their tasks, shims without a record, cgroups, FIFO
// directories, and views of images that nothing uses. It never touches what
// belongs to a living instance, or what does not carry our mark. It goes on
// after an error and returns all of them, and takes no longer than
// sweepTimeout.
func (r *Runner) Sweep(ctx context.Context) (Swept, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTimeout, errors.New("it took too long"))
	defer cancel()
	var swept Swept
	s, strays, used, err := r.look(ctx)
	if err != nil {
		return swept, err
	}
	errs := s.containers(ctx, strays, &swept)
	errs = append(errs, s.shims(ctx, &swept), s.cgroups(ctx, &swept), s.directories(&swept))
	if s.alone && len(strays) == swept.Containers {
		// Another instance may be about to use a view that no container uses.
		errs = append(errs, r.sweepViews(ctx, used, &swept))
	}
	return swept, errors.Join(errs...)
}

// Strays counts the sandboxes that a Sweep would remove.
func (r *Runner) Strays(ctx context.Context) (int, error) {
	_, strays, _, err := r.look(ctx)
	return len(strays), err
}

// look finds the sandboxes that nobody owns, and the snapshots that the others
// use.
func (r *Runner) look(ctx context.Context) (s *sweep, strays []*box, used map[string]bool, err error) {
	s, used = r.newSweep(), map[string]bool{}
	s.know()
	found, err := r.containers.List(ctx, fmt.Sprintf("labels.%q", labelInstance))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range found {
		if owner := c.Labels[labelInstance]; owner != r.instance.id && !locked(c.Labels[labelLock]) {
			s.dead[owner] = true
		}
		if s.stray(c.ID) {
			strays = append(strays, r.box(c.ID))
		} else {
			used[c.SnapshotKey] = true
		}
	}
	return s, strays, used, nil
}

const (
	// sweepTimeout bounds a whole sweep, which the start of a server waits for.
	sweepTimeout = time.Minute
	// sweepWidth is how many sandboxes are removed at a time.
	sweepWidth = 8
	// shimGrace is how long a shim may take to end after its sandbox is gone.
	shimGrace = time.Second
	// lockGrace is the age at which a lock that was never named is a leftover.
	lockGrace = time.Minute
)

// sweep is what one Sweep knows.
type sweep struct {
	r *Runner
	// dead are the instances that have ended. One is dead when its lock says
	// so, never for want of a lock: what has none may belong to a server with
	// another run directory. A container names its lock itself.
	dead map[string]bool
	// alone is true when no other instance lives in our run directory.
	alone bool
	// ours are the sandboxes of this instance that existed before a list was
	// made: one that has ended in the usual way since then is no leftover.
	ours map[string]bool
	// unclean are the dead instances of which something is left.
	unclean map[string]bool
}

func (r *Runner) newSweep() *sweep {
	s := &sweep{r: r, dead: map[string]bool{}, unclean: map[string]bool{}, alone: true, ours: map[string]bool{}}
	locks, _ := filepath.Glob(lockPath(filepath.Join(r.opts.RunDir, "*"))) // the pattern is well-formed
	for _, lock := range locks {
		id := strings.TrimSuffix(filepath.Base(lock), lockPath(""))
		switch {
		case id == r.instance.id:
		case locked(lock):
			s.alone = false
		default:
			s.dead[id] = true
		}
	}
	return s
}

// know takes note of the sandboxes of this instance. Whoever makes a list of what
// there is does it first.
func (s *sweep) know() {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for id := range s.r.boxes {
		s.ours[id] = true
	}
}

// stray reports whether nobody owns the sandbox with this id. Ours are known
// before anything of them exists, so what is on a list and was unknown before and
// after was made by containerd for a request that we had given up.
func (s *sweep) stray(id string) bool {
	owner := instanceOf(id)
	if owner != s.r.instance.id {
		return s.dead[owner]
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	return !s.ours[id] && s.r.boxes[id] == nil
}

// containers removes strays, several at a time. What it has begun is brought to
// its end even if ctx ends first, or shims would be left.
func (s *sweep) containers(ctx context.Context, strays []*box, swept *Swept) []error {
	type removed struct {
		id  string
		err error
	}
	width := make(chan struct{}, sweepWidth)
	done := make(chan removed, len(strays))
	for _, b := range strays {
		s.r.busy.Go(func() {
			select {
			case width <- struct{}{}:
				defer func() { <-width }()
			case <-ctx.Done():
				done <- removed{b.id, context.Cause(ctx)}
				return
			}
			done <- removed{b.id, b.dispose(context.WithoutCancel(ctx))}
		})
	}
	var errs []error
	for n := range strays {
		select {
		case d := <-done:
			if d.err != nil {
				errs = append(errs, fmt.Errorf("sweep %s: %w", d.id, d.err))
				s.unclean[instanceOf(d.id)] = true
				continue
			}
			swept.Containers++
		case <-ctx.Done():
			for id := range s.dead {
				s.unclean[id] = true
			}
			return append(errs, fmt.Errorf("sweep: %d sandboxes are left: %w", len(strays)-n, context.Cause(ctx)))
		}
	}
	return errs
}

// instanceOf returns the instance that a sandbox's id begins with.
func instanceOf(id string) string {
	owner, _, _ := strings.Cut(id, "-")
	return owner
}

// shims kills shims of ours that containerd has no record of, which a
// containerd that died within Create leaves (containerd#6860).
func (s *sweep) shims(ctx context.Context, swept *Swept) error {
	s.know()
	strays := s.r.shims(s.stray)
	if len(strays) == 0 {
		return nil
	}
	// One whose sandbox was just removed is about to end by itself.
	select {
	case <-ctx.Done():
	case <-time.After(shimGrace):
	}
	n, err := killShims(strays)
	swept.Shims += n
	errs := []error{err}
	for _, stray := range strays {
		errs = append(errs, s.r.box(stray.id).removeLeavings())
	}
	return errors.Join(errs...)
}

func (s *sweep) cgroups(ctx context.Context, swept *Swept) error {
	s.know()
	names, err := s.r.opts.Cgroups.Children(s.r.opts.CgroupParent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout, errors.New("sweeping cgroups took too long"))
	defer cancel()
	var errs []error
	for _, name := range names {
		group := s.r.box(name).group
		if !s.stray(name) || !group.Exists() {
			continue
		}
		if err := removeGroup(ctx, group); err != nil {
			errs = append(errs, err)
			s.unclean[instanceOf(name)] = true
			continue
		}
		swept.Cgroups++
	}
	return errors.Join(errs...)
}

// directories removes what clean dead instances have in the run directory.
func (s *sweep) directories(swept *Swept) error {
	var errs []error
	for id := range s.dead {
		if s.unclean[id] {
			continue
		}
		path := filepath.Join(s.r.opts.RunDir, id)
		boxes, err := os.ReadDir(path)
		there := err == nil
		var failed []error
		for _, b := range boxes {
			// Its container is gone: a sandbox of which one is left keeps the
			// instance unclean.
			failed = append(failed, s.r.box(b.Name()).removeLeavings(), daemon.RemoveFlat(filepath.Join(path, b.Name())))
		}
		failed = append(failed, daemon.RemoveFlat(path))
		if err := errors.Join(failed...); err != nil {
			errs = append(errs, fmt.Errorf("remove instance directory: %w", err))
			continue
		}
		// The lock last: it is what says that there is something to sweep.
		if err := daemon.RemoveFlat(lockPath(path)); err != nil {
			errs = append(errs, fmt.Errorf("remove instance lock: %w", err))
		} else if there {
			swept.Directories++
		}
	}
	nameless, _ := filepath.Glob(filepath.Join(s.r.opts.RunDir, namelessLock)) // the pattern is well-formed
	for _, lock := range nameless {
		if info, err := os.Stat(lock); err == nil && time.Since(info.ModTime()) > lockGrace && !locked(lock) {
			errs = append(errs, daemon.RemoveFlat(lock))
		}
	}
	return errors.Join(errs...)
}

// sweepViews removes our views of images that neither a container nor this
// instance uses. While it does not know which it will use, all stay.
//
// Preconditions: no other instance lives.
func (r *Runner) sweepViews(ctx context.Context, used map[string]bool, swept *Swept) error {
	r.mu.Lock()
	now, view := r.rootfs, r.view
	r.mu.Unlock()
	if view == "" {
		return nil
	}
	used[view] = true
	if now != nil {
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
