package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// leaseExpiry bounds how long the half-made import of a process that died
	// is kept; it must be longer than any import takes.
	leaseExpiry = 24 * time.Hour
	// unpackTries is how often layers may go while they are unpacked.
	unpackTries = 3
	// cleanupTimeout bounds giving up the lease, garbage collection included.
	cleanupTimeout = time.Minute
)

// Options say what to import.
type Options struct {
	// Name is the image in the source and the name of our record. Required.
	Name string
	// Snapshotter is where the image is unpacked, empty means overlayfs.
	Snapshotter string
	// Progress, when set, is told how far the import is. It is called often
	// and from one goroutine at a time.
	Progress func(Progress)
}

// Step is one part of an import, in the order of the constants.
type Step string

// The steps of an import.
const (
	StepRead   Step = "read"
	StepUnpack Step = "unpack"
	StepVerify Step = "verify"
)

// Progress tells how far an import is.
type Progress struct {
	Step Step
	// Done and Total are bytes read, in StepRead only. Total is zero when it is
	// not known, and an estimate otherwise.
	Done, Total int64
}

// Outcome says what Import did.
type Outcome string

// What Import did.
const (
	// Unchanged: the source's image was already here and ready.
	Unchanged Outcome = "unchanged"
	// Repaired: the image was here, and was unpacked or verified again.
	Repaired Outcome = "repaired"
	// Imported: no image had the name before.
	Imported Outcome = "imported"
	// Replaced: the name stood for another image before. What still runs on
	// that one is not touched.
	Replaced Outcome = "replaced"
)

// Import brings the image from src into the client's namespace, unpacked and
// verified, and returns what Find will return from now on. An image that does
// not fit is an *UnfitError, and leaves the image of that name as it was.
//
// The caller must be root in the mount namespace of containerd: verifying
// mounts the image, out of everybody else's sight.
func Import(ctx context.Context, client *containerd.Client, opts Options, src Source) (_ Image, _ Outcome, retErr error) {
	if opts.Snapshotter == "" {
		opts.Snapshotter = "overlayfs"
	}
	if opts.Progress == nil {
		opts.Progress = func(Progress) {}
	}
	if ns := namespaceOf(ctx, client); ns == "" || ns == "moby" {
		return Image{}, "", fmt.Errorf("import image: containerd namespace %q is not ours to write to", ns)
	}
	id, size, err := src.stat(ctx, opts.Name)
	if err != nil {
		return Image{}, "", fmt.Errorf("import image: %w", err)
	}

	lease, err := client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseExpiry))
	if err != nil {
		return Image{}, "", fmt.Errorf("import image: create lease: %w", err)
	}
	ctx = leases.WithLease(ctx, lease.ID)
	defer func() {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTimeout, errors.New("cleaning up took too long"))
		defer cancel()
		// Synchronous: what the old image held is free when we return.
		if e := client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete); e != nil && !errdefs.IsNotFound(e) {
			retErr = errors.Join(retErr, fmt.Errorf("import image: delete lease: %w", e))
		}
	}()

	old, err := client.ImageService().Get(ctx, opts.Name)
	known := err == nil
	if err != nil && !errdefs.IsNotFound(err) {
		return Image{}, "", fmt.Errorf("import image %s: look for it: %w", opts.Name, err)
	}
	now, why, err := find(ctx, client, opts.Name, opts.Snapshotter)
	if err != nil {
		return Image{}, "", fmt.Errorf("import image %s: look for it: %w", opts.Name, err)
	}
	if known && id != "" && old.Labels[labelSource] == id {
		if why == "" {
			return now, Unchanged, nil
		}
		img, err := install(ctx, client, opts, old.Target, id)
		if err == nil {
			return img, Repaired, nil
		}
		if !errdefs.IsNotFound(err) {
			return Image{}, "", fmt.Errorf("import image %s: %w", opts.Name, err)
		}
		// Content went missing: read it all again.
	}

	target, id, err := read(ctx, client.ContentStore(), opts, src, id, size)
	if err != nil {
		return Image{}, "", fmt.Errorf("import image %s: %w", opts.Name, err)
	}
	outcome := Imported
	switch same := old.Target.Digest == target.Digest; {
	case same && why == "" && now.SourceID == id:
		return now, Unchanged, nil
	case same:
		outcome = Repaired
	case known:
		outcome = Replaced
	}
	img, err := install(ctx, client, opts, target, id)
	if err != nil {
		return Image{}, "", fmt.Errorf("import image %s: %w", opts.Name, err)
	}
	return img, outcome, nil
}

// read stores the content of the source's image, and returns the manifest for
// this host and the id of the source. Preconditions: ctx carries a lease.
func read(ctx context.Context, store content.Store, opts Options, src Source, id string, size int64) (ocispec.Descriptor, string, error) {
	none := ocispec.Descriptor{}
	lease, _ := leases.FromContext(ctx)
	stream, err := src.open(ctx, opts.Name)
	if err != nil {
		return none, "", err
	}
	defer stream.Close()
	counted := &progressReader{Reader: stream, total: size, report: opts.Progress}
	plain, err := compression.DecompressStream(counted)
	if err != nil {
		return none, "", fmt.Errorf("read archive: %w", err)
	}
	defer plain.Close()
	index, err := archive.ImportIndex(ctx, ownIngests{store, lease}, plain)
	switch {
	case err == nil:
	case errdefs.IsUnknown(err) || !errors.Is(errdefs.Resolve(err), errdefs.ErrUnknown):
		// It has a kind, so containerd or the context says no. Space that runs
		// out on containerd's side is of the kind "unknown".
		return none, "", fmt.Errorf("store content: %w", err)
	default:
		return none, "", fmt.Errorf("read archive: %w (wanted: what docker save writes, or an OCI layout as a tar)", err)
	}
	// Whoever writes the archive into a pipe must not die of SIGPIPE for the
	// padding that ends a tar.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return none, "", fmt.Errorf("read archive: %w", err)
	}

	seen, target, err := choose(ctx, store, index, opts.Name)
	if err != nil {
		return none, "", err
	}
	if err := images.Walk(ctx, images.SetChildrenLabels(store, images.ChildrenHandler(store)), target); err != nil {
		return none, "", fmt.Errorf("read archive: %w", err)
	}
	// The name may have moved in the source after we asked for its id.
	if !slices.Contains(seen, id) {
		id = seen[len(seen)-1]
	}
	return target, id, nil
}

// choose finds the manifest of the image called name for this host in the
// index of an archive. It also returns the digests on the way to it, from the
// index's entry down to the config.
func choose(ctx context.Context, store content.Provider, index ocispec.Descriptor, name string) ([]string, ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	var top ocispec.Index
	if err := readJSON(ctx, store, index, &top); err != nil {
		return nil, none, fmt.Errorf("read archive: %w", err)
	}
	full := name
	if ref, err := reference.ParseDockerRef(name); err == nil {
		full = ref.String()
	}
	named := func(d ocispec.Descriptor) bool { return d.Annotations[images.AnnotationImageName] == full }
	found := top.Manifests
	if slices.ContainsFunc(found, named) {
		found = slices.DeleteFunc(slices.Clone(found), func(d ocispec.Descriptor) bool { return !named(d) })
	}
	// There is an entry for each tag, also where several name the same image.
	found = slices.Clone(found)
	slices.SortFunc(found, func(a, b ocispec.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	found = slices.CompactFunc(found, func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest })
	if len(found) != 1 {
		return nil, none, fmt.Errorf("the archive holds %d images, and not one called %s: save that one alone", len(found), name)
	}
	seen, target, err := forHost(ctx, store, found[0])
	if err != nil {
		return nil, none, fmt.Errorf("read archive: %w", err)
	}
	return seen, target, nil
}

// forHost follows desc to a manifest for this host's platform.
func forHost(ctx context.Context, store content.Provider, desc ocispec.Descriptor) ([]string, ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	host := platforms.DefaultSpec()
	// Strict: the sandbox's seccomp profile knows one ABI, so a 32-bit image
	// on a 64-bit host would not do.
	match := platforms.OnlyStrict(host)
	seen := []string{desc.Digest.String()}
	if images.IsIndexType(desc.MediaType) {
		var index ocispec.Index
		if err := readJSON(ctx, store, desc, &index); err != nil {
			return nil, none, err
		}
		for _, d := range index.Manifests {
			if d.Platform != nil && !match.Match(*d.Platform) {
				continue
			}
			below, target, err := forHost(ctx, store, d)
			if err == nil {
				return append(seen, below...), target, nil
			}
			if d.Platform != nil {
				return nil, none, err
			}
		}
		return nil, none, fmt.Errorf("the image is not for this host's platform %s: build it here", platforms.Format(host))
	}
	var manifest ocispec.Manifest
	if err := readJSON(ctx, store, desc, &manifest); err != nil {
		return nil, none, err
	}
	platform, err := images.ConfigPlatform(ctx, store, manifest.Config)
	if err != nil {
		return nil, none, err
	}
	if !match.Match(platform) {
		return nil, none, fmt.Errorf("the image is for %s, this host is %s: build it here", platforms.Format(platform), platforms.Format(host))
	}
	return append(seen, manifest.Config.Digest.String()), desc, nil
}

// install unpacks and verifies the image, then writes its record.
// Preconditions: ctx carries a lease; the content is there.
func install(ctx context.Context, client *containerd.Client, opts Options, target ocispec.Descriptor, id string) (Image, error) {
	img, err := describe(ctx, client.ContentStore(), target)
	if err != nil {
		return Image{}, err
	}
	img.Name, img.Snapshotter, img.SourceID = opts.Name, opts.Snapshotter, id
	record := images.Image{Name: opts.Name, Target: target}

	opts.Progress(Progress{Step: StepUnpack})
	// Unpack also makes the config refer to the snapshot, so that the record
	// we write below keeps it from the garbage collector. A layer that is there
	// already is nobody's until then: a collection that was due can take it from
	// under the next one, which is then made anew.
	err = containerd.NewImage(client, record).Unpack(ctx, opts.Snapshotter)
	for tries := 1; errdefs.IsNotFound(err) && tries < unpackTries; tries++ {
		err = containerd.NewImage(client, record).Unpack(ctx, opts.Snapshotter)
	}
	if err != nil {
		return Image{}, fmt.Errorf("unpack: %w", err)
	}
	opts.Progress(Progress{Step: StepVerify})
	if err := verify(ctx, client.SnapshotService(opts.Snapshotter), &img); err != nil {
		return Image{}, fmt.Errorf("verify: %w", err)
	}

	record.Labels = map[string]string{
		labelSource: id, labelVerified: verifiedAs(img), labelEnvironment: img.Environment,
	}
	store := client.ImageService()
	_, err = store.Create(ctx, record)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, record, "target", "labels")
	}
	if err != nil {
		return Image{}, fmt.Errorf("record image: %w", err)
	}
	return img, nil
}

// ownIngests gives the ingests of one import names of their own. The importer
// names them after the files of the archive, so that two imports, or one after
// another that was killed, would continue each other's files.
type ownIngests struct {
	content.Store
	prefix string
}

func (s ownIngests) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var wanted content.WriterOpts
	for _, opt := range opts {
		if err := opt(&wanted); err != nil {
			return nil, err
		}
	}
	return s.Store.Writer(ctx, append(slices.Clone(opts), content.WithRef(s.prefix+"/"+wanted.Ref))...)
}

// progressReader reports what is read through it.
type progressReader struct {
	io.Reader
	done, total int64
	report      func(Progress)
}

func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.done += int64(n)
	total := r.total
	if total > 0 {
		total = max(total, r.done)
	}
	r.report(Progress{Step: StepRead, Done: r.done, Total: total})
	return n, err
}
