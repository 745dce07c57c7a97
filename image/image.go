// Package image holds the runtime image of the sandboxes in our own containerd
// namespace: it imports the image from Docker or from a tar, unpacks it,
// verifies that the unpacked tree is what a sandbox relies on, and finds it
// again, pinned by digest.
//
// The record of the image is written last, once everything has been proven, so
// a name always stands for an image that is fit to run. The record keeps the
// content and the unpacked layers alive; what a replaced image leaves is
// collected by containerd, except what a container still stands on.
package image

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"code-execution-sandbox/internal/sandbox"
)

const (
	// labelSource is the id that the source gave the image, see Image.SourceID.
	labelSource = "code-execution-sandbox/image.source"
	// labelVerified is the value of verifiedAs for the verified image. It names
	// the digest, so it proves nothing once the record points elsewhere.
	labelVerified = "code-execution-sandbox/image.verified"
	// labelEnvironment is Image.Environment.
	labelEnvironment = "code-execution-sandbox/image.environment"
	// rules is raised whenever verify becomes stricter, so that an image that
	// passed older rules is looked at again.
	rules = "2"

	// remedy ends every reason why the image is not ready.
	remedy = "type: code-execution-sandbox image import, with the --config of the server if it has one"
)

// Image is a verified image, unpacked and ready to run.
type Image struct {
	// Name is the configured name, and the name of containerd's record.
	Name string
	// Digest is that of the manifest for this host's platform.
	Digest string
	// ChainID is the key of the committed snapshot that holds the whole tree;
	// a sandbox takes a View of it.
	ChainID string
	// Snapshotter is the one that holds ChainID.
	Snapshotter string
	// Layers is the number of layers, Size the bytes of their blobs.
	Layers int
	Size   int64
	// SourceID is the id the image had where it came from: Docker's image id,
	// or the digest of the config for an image from a tar. Docker without its
	// containerd image store uses the digest of the config too.
	SourceID string
	// Created is when the image was built, zero when the image does not tell.
	Created time.Time
	// Environment says in a sentence or two what a program finds in the image:
	// the text of environmentFile, empty when the image has none.
	Environment string
	// Labels are those of the image's own config, for display only: nothing
	// in them decides how a sandbox is made.
	Labels map[string]string
}

// Find returns the image called name if it is ready to run: known, unpacked in
// the snapshotter and verified. What is missing is told by a
// *sandbox.NotReadyError with the check "image"; any other error is an
// ErrUnavailable, since containerd did not answer as it should.
func Find(ctx context.Context, client *containerd.Client, name, snapshotter string) (Image, error) {
	img, why, err := find(ctx, client, name, snapshotter)
	if err != nil {
		return Image{}, fmt.Errorf("%w: find image %s: %w", sandbox.ErrUnavailable, name, err)
	}
	if why != "" {
		return Image{}, &sandbox.NotReadyError{Check: "image", Reason: why + "; " + remedy}
	}
	return img, nil
}

// find is Find, with the reason why the image is not ready apart from errors.
func find(ctx context.Context, client *containerd.Client, name, snapshotter string) (_ Image, why string, _ error) {
	record, err := client.ImageService().Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return Image{}, fmt.Sprintf("%s is not in containerd namespace %s", name, namespaceOf(ctx, client)), nil
	}
	if err != nil {
		return Image{}, "", err
	}
	img, err := describe(ctx, client.ContentStore(), record.Target)
	if errdefs.IsNotFound(err) {
		return Image{}, fmt.Sprintf("the content of %s is missing", name), nil
	}
	if err != nil {
		return Image{}, "", err
	}
	img.Name, img.Snapshotter = name, snapshotter
	img.SourceID, img.Environment = record.Labels[labelSource], record.Labels[labelEnvironment]
	if _, err := client.SnapshotService(snapshotter).Stat(ctx, img.ChainID); errdefs.IsNotFound(err) {
		return img, fmt.Sprintf("%s is not unpacked in snapshotter %s", name, snapshotter), nil
	} else if err != nil {
		return Image{}, "", err
	}
	if record.Labels[labelVerified] != verifiedAs(img) {
		return img, fmt.Sprintf("%s has not been verified", name), nil
	}
	return img, "", nil
}

// Remove removes the image called name and waits until containerd has freed
// what no container uses. It is no error if there is none.
func Remove(ctx context.Context, client *containerd.Client, name string) error {
	err := client.ImageService().Delete(ctx, name, images.SynchronousDelete())
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return nil
}

// describe reads what the manifest and the config tell.
func describe(ctx context.Context, store content.Provider, target ocispec.Descriptor) (Image, error) {
	var manifest ocispec.Manifest
	if err := readJSON(ctx, store, target, &manifest); err != nil {
		return Image{}, fmt.Errorf("read manifest: %w", err)
	}
	var config ocispec.Image
	if err := readJSON(ctx, store, manifest.Config, &config); err != nil {
		return Image{}, fmt.Errorf("read image config: %w", err)
	}
	img := Image{
		Digest:   target.Digest.String(),
		ChainID:  identity.ChainID(config.RootFS.DiffIDs).String(),
		Layers:   len(config.RootFS.DiffIDs),
		SourceID: manifest.Config.Digest.String(),
		Labels:   config.Config.Labels,
	}
	if config.Created != nil {
		img.Created = *config.Created
	}
	for _, layer := range manifest.Layers {
		img.Size += layer.Size
	}
	return img, nil
}

// readJSON decodes the blob of desc, whose digest the store vouches for.
func readJSON(ctx context.Context, store content.Provider, desc ocispec.Descriptor, into any) error {
	blob, err := content.ReadBlob(ctx, store, desc)
	if err != nil {
		return err
	}
	return json.Unmarshal(blob, into)
}

// verifiedAs is the mark of an image that has passed verify. The snapshotter
// belongs to it, since it is the unpacked tree that was looked at.
func verifiedAs(img Image) string {
	return rules + " " + img.Snapshotter + " " + img.Digest
}

// namespaceOf is the containerd namespace that calls with ctx act in.
func namespaceOf(ctx context.Context, client *containerd.Client) string {
	if ns, ok := namespaces.Namespace(ctx); ok {
		return ns
	}
	return client.DefaultNamespace()
}
