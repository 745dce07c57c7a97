package escape

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"code-execution-sandbox/image"
	"code-execution-sandbox/test/harness"
)

// imageOnDisk compares what the page cache has of the image's files with what
// is on the disk: a file whose cached pages were changed by a program reads as
// changed to everybody, until it is evicted. The hash that is taken from inside
// before and after all rows cannot tell when the change came before both.
func imageOnDisk(x *exam) {
	ctx := x.t.Context()
	img, err := image.Find(ctx, harness.Client(), harness.ImageName, x.opts.Snapshotter)
	if err != nil {
		x.t.Fatal(err)
	}
	store := harness.Client().SnapshotService(x.opts.Snapshotter)
	mounts, err := store.View(ctx, "escape-disk", img.ChainID, kept)
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() {
		if err := store.Remove(ctx, "escape-disk"); err != nil {
			x.t.Error(err)
		}
	}()
	checked := 0
	for _, o := range mounts[0].Options {
		dirs, ok := strings.CutPrefix(o, "lowerdir=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(dirs, ":") {
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				cached, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				stored, err := directSum(path)
				if err != nil {
					return err
				}
				if sum := sha256.Sum256(cached); !bytes.Equal(stored, sum[:]) {
					x.fault(173, "%s is not in the page cache what it is on the disk", path)
				}
				checked++
				return nil
			})
			if errors.Is(err, unix.EINVAL) {
				x.t.Log("row 173: the file system has no O_DIRECT; the page cache is not compared with the disk")
				return
			}
			if err != nil {
				x.t.Fatal(err)
			}
		}
	}
	if checked < 1000 {
		x.fault(173, "only %d files were found", checked)
	}
}

// directSum is the SHA-256 of a file's bytes on the disk.
func directSum(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// O_DIRECT wants whole blocks at addresses of whole blocks.
	const size, block = 1 << 20, 4096
	raw := make([]byte, size+block)
	skip := (block - int(uintptr(unsafe.Pointer(&raw[0]))%block)) % block
	buf := raw[skip : skip+size]
	sum := sha256.New()
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		if errors.Is(err, io.EOF) || err == nil && n < size && n%block != 0 {
			return sum.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
	}
}
