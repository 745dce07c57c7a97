package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	containerd "github.com/containerd/containerd/v2/client"
)

const (
	// sbomFile is written by image/Dockerfile, see describe.py.
	sbomFile = "/usr/lib/code-execution-sandbox/sbom.cdx.json"
	// maxSBOM bounds what is read of it, in bytes; 500 packages take 150 kB.
	maxSBOM = 16 << 20
)

// SBOM returns the bill of materials that img carries: CycloneDX, as JSON.
func SBOM(ctx context.Context, client *containerd.Client, img Image) (text []byte, err error) {
	wrap := func(err error) error { return fmt.Errorf("read the bill of materials of %s: %w", img.Name, err) }
	ctx, done, err := client.WithLease(ctx)
	if err != nil {
		return nil, wrap(err)
	}
	defer func() {
		if e := done(context.WithoutCancel(ctx)); e != nil {
			err = errors.Join(err, wrap(e))
		}
	}()
	err = viewed(ctx, client.SnapshotService(img.Snapshotter), img, func() error {
		info, err := os.Lstat(sbomFile)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return &fs.PathError{Op: "read", Path: sbomFile, Err: fs.ErrInvalid}
		}
		file, err := os.Open(sbomFile)
		if err != nil {
			return err
		}
		defer file.Close()
		text, err = io.ReadAll(io.LimitReader(file, maxSBOM))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, wrap(errors.New("it has none; build it anew"))
	}
	if err != nil {
		return nil, wrap(err)
	}
	return text, nil
}
