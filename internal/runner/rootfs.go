package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/sandbox"
)

// rootfs is the root file system of sandboxes: one read-only view of the
// image, made once. Each sandbox mounts it for itself, as an overlay without
// an upper layer, so they share no inodes of the mount and a prepare writes no
// snapshot. Nothing can be written through it.
type rootfs struct {
	image  image.Image
	key    string // of the snapshot
	mounts []*types.Mount
}

// viewPrefix begins the snapshot keys of our views.
const viewPrefix = "code-execution-sandbox-view-"

// openRootfs makes or finds the view of img with this key.
func (r *Runner) openRootfs(ctx context.Context, img image.Image, key string) (*rootfs, error) {
	// The view of a single layer is a bind mount: sandboxes would share its
	// inodes, and file locks would be a channel between them.
	if img.Layers < 2 {
		return nil, &sandbox.NotReadyError{Check: "image", Reason: fmt.Sprintf("image %s has a single layer; build it with at least two", img.Name)}
	}
	store := r.opts.Client.SnapshotService(r.opts.Snapshotter)
	mounts, err := store.View(ctx, key, img.ChainID,
		// No container need refer to it at all times.
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "view"}))
	if errdefs.IsAlreadyExists(err) {
		mounts, err = store.Mounts(ctx, key)
	}
	if err != nil {
		return nil, fmt.Errorf("view image: %w", err)
	}
	return &rootfs{image: img, key: key, mounts: readOnly(mounts)}, nil
}

// readOnly gives mounts the flags that the spec's read-only root does not:
// runc before 1.5.3 drops nosuid and nodev when it remounts, so they are
// belt and braces beside no_new_privs and the device rules.
func readOnly(mounts []mount.Mount) []*types.Mount {
	out := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		out = append(out, &types.Mount{
			Type: m.Type, Source: m.Source, Target: m.Target,
			Options: append([]string{"ro", "nosuid", "nodev"}, m.Options...),
		})
	}
	return out
}

// Refresh asks containerd, looks for the image and, when it is a new one, lets
// new sandboxes use it; those that exist keep theirs. Where the options ask for
// a proof of the protections, it is due with each new image and containerd,
// after a failure, and once in proofAge. It returns why no program can run, a
// *sandbox.NotReadyError, or nil; the end of ctx, which says nothing of this
// host, is told as its cause.
func (r *Runner) Refresh(ctx context.Context) error {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	lookCtx, cancel := context.WithTimeoutCause(ctx, refreshTimeout, errors.New("no answer in time"))
	defer cancel()
	fs, err := r.findRootfs(lookCtx)
	if err == nil && r.opts.SelfTest {
		err = r.prove(lookCtx, fs)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("look for the image: %w", context.Cause(ctx))
	}
	var notReady *sandbox.NotReadyError
	switch {
	case err == nil:
		return r.setReady(fs, nil)
	case errors.As(err, &notReady):
	case errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || lookCtx.Err() != nil:
		notReady = errAway
	default:
		notReady = &sandbox.NotReadyError{Check: "image", Reason: err.Error()}
	}
	return r.setReady(nil, notReady)
}

func (r *Runner) findRootfs(ctx context.Context) (*rootfs, error) {
	if err := r.ping(ctx); err != nil {
		return nil, err
	}
	img, err := image.Find(ctx, r.opts.Client, r.opts.ImageName, r.opts.Snapshotter)
	if err != nil {
		return nil, err
	}
	key := viewPrefix + strings.ReplaceAll(img.ChainID, ":", "-")
	r.mu.Lock()
	r.view = key // no sweep may take it from here on
	now := r.rootfs
	r.mu.Unlock()
	if now != nil && now.key == key {
		return now, nil
	}
	return r.openRootfs(ctx, img, key)
}

// setReady makes fs the root file system of new sandboxes, or err the reason
// why there are none, and says so when that is news.
func (r *Runner) setReady(fs *rootfs, err error) error {
	r.mu.Lock()
	was, had := r.notReady, r.rootfs
	r.notReady = err
	select {
	case <-r.looked:
	default:
		close(r.looked)
	}
	if err == nil && r.up.Err() != nil {
		r.up, r.down = context.WithCancelCause(context.Background())
	}
	if errors.Is(err, errAway) {
		r.down(errAway)
	}
	if fs != nil {
		r.rootfs = fs
	}
	r.mu.Unlock()
	if fs != nil && fs != had {
		r.opts.ImageChanged(fs.image)
	}
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		r.log.Warn("not ready", "reason", err.Error())
	case err == nil && (was != nil || had != fs):
		r.log.Info("ready", "image", fs.image.Name, "digest", fs.image.Digest)
		r.pool.wake()
	}
	return err
}

// current returns the root file system of new sandboxes, nil while there is
// none.
func (r *Runner) current() *rootfs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rootfs
}

// ready returns why no program can run, or nil.
func (r *Runner) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notReady
}

// Image returns the image in use, false while there is none.
func (r *Runner) Image() (image.Image, bool) {
	if fs := r.current(); fs != nil {
		return fs.image, true
	}
	return image.Image{}, false
}
