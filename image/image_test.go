package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/daemon/daemontest"
	"code-execution-sandbox/internal/sandbox"
)

const testName = "code-execution-sandbox-test:latest"

// layer makes the tar of one layer.
func layer(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		body := []byte(nil)
		if h.Typeflag == tar.TypeReg {
			body = []byte(h.Linkname)
			h.Linkname, h.Size = "", int64(len(body))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func dir(name string, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}
}

func link(name, target string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

// file is a regular file; layer takes its text from Linkname.
func file(name string, mode int64, text string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Linkname: text}
}

// goodTree is the least that verify accepts, in Debian's shape.
func goodTree() []*tar.Header {
	return []*tar.Header{
		dir("dev", 0o755), dir("proc", 0o555), dir("tmp", 0o1777), dir("etc", 0o755),
		dir("usr", 0o755), dir("usr/bin", 0o755), dir("usr/lib", 0o755), dir("usr/lib/code-execution-sandbox", 0o755),
		link("bin", "usr/bin"),
		file("usr/bin/bash", 0o755, "bash"),
		file("usr/bin/python3.13", 0o755, "python"),
		link("usr/bin/python3", "/usr/bin/python3.13"),
		file("usr/lib/code-execution-sandbox/launcher", 0o755, "launcher"),
		file("etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/tmp:/bin/sh\n"),
	}
}

type archived struct {
	tag    string
	layers [][]byte
	arch   string
	label  string
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func writeTar(t *testing.T, files map[string][]byte, order []string) []byte {
	t.Helper()
	var headers []*tar.Header
	for _, name := range order {
		headers = append(headers, file(name, 0o644, string(files[name])))
	}
	return layer(t, headers...)
}

// config is the config of an image, and the id that Docker gives it.
func (a archived) config(t *testing.T) ([]byte, string) {
	t.Helper()
	var diffs []string
	for _, l := range a.layers {
		diffs = append(diffs, "sha256:"+digestOf(l))
	}
	if a.arch == "" {
		a.arch = runtime.GOARCH
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": a.arch, "created": "2026-01-02T03:04:05Z",
		"config": map[string]any{"Labels": map[string]string{"what": a.label}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		t.Fatal(err)
	}
	return config, "sha256:" + digestOf(config)
}

// dockerArchive is what docker save of a graph driver writes.
func dockerArchive(t *testing.T, all ...archived) []byte {
	t.Helper()
	files, order := map[string][]byte{}, []string(nil)
	put := func(name string, data []byte) string {
		if files[name] == nil {
			order = append(order, name)
		}
		files[name] = data
		return name
	}
	var manifest []map[string]any
	for _, a := range all {
		config, id := a.config(t)
		var layers []string
		for _, l := range a.layers {
			layers = append(layers, put(digestOf(l)+"/layer.tar", l))
		}
		entry := map[string]any{"Config": put(strings.TrimPrefix(id, "sha256:")+".json", config), "Layers": layers}
		if a.tag != "" {
			entry["RepoTags"] = []string{a.tag}
		}
		manifest = append(manifest, entry)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	put("manifest.json", text)
	return writeTar(t, files, order)
}

// ociArchive is what docker save of the containerd image store writes: an
// index that names an index, with an attestation beside the image and another
// platform whose blobs are not there. It returns the inner index's digest too.
func ociArchive(t *testing.T, a archived) ([]byte, string) {
	t.Helper()
	files, order := map[string][]byte{}, []string(nil)
	put := func(name string, data []byte) {
		files[name] = data
		order = append(order, name)
	}
	blob := func(mediaType string, v any) map[string]any {
		data, ok := v.([]byte)
		if !ok {
			var err error
			if data, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		put("blobs/sha256/"+digestOf(data), data)
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digestOf(data), "size": len(data)}
	}
	config, _ := a.config(t)
	var layers []any
	for _, l := range a.layers {
		layers = append(layers, blob("application/vnd.oci.image.layer.v1.tar", l))
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	const indexType = "application/vnd.oci.image.index.v1+json"
	manifest := blob(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": blob("application/vnd.oci.image.config.v1+json", config), "layers": layers,
	})
	manifest["platform"] = map[string]string{"os": "linux", "architecture": runtime.GOARCH}
	absent := map[string]any{
		"mediaType": manifestType, "digest": "sha256:" + strings.Repeat("0", 64), "size": 2,
		"platform": map[string]string{"os": "linux", "architecture": "s390x"},
	}
	attestation := map[string]any{
		"mediaType": manifestType, "digest": "sha256:" + strings.Repeat("1", 64), "size": 2,
		"platform": map[string]string{"os": "unknown", "architecture": "unknown"},
	}
	index := blob(indexType, map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []any{absent, attestation, manifest},
	})
	index["annotations"] = map[string]string{"io.containerd.image.name": "docker.io/library/" + a.tag}
	top, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []any{index}})
	if err != nil {
		t.Fatal(err)
	}
	put("index.json", top)
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return writeTar(t, files, order), index["digest"].(string)
}

func good(t *testing.T, more ...*tar.Header) archived {
	t.Helper()
	return archived{tag: testName, layers: [][]byte{layer(t, goodTree()...), layer(t, more...)}}
}

func importTar(t *testing.T, client *containerd.Client, archive []byte) (Image, Outcome) {
	t.Helper()
	img, outcome, err := Import(t.Context(), client, Options{Name: testName}, Tar(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	return img, outcome
}

// held lists all that containerd holds in the test's namespace.
func held(t *testing.T, client *containerd.Client) []string {
	t.Helper()
	ctx := t.Context()
	var found []string
	err := client.ContentStore().Walk(ctx, func(info content.Info) error {
		found = append(found, "blob "+info.Digest.String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		found = append(found, "snapshot "+info.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := client.ImageService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		found = append(found, "image "+r.Name)
	}
	ls, err := client.LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ls {
		found = append(found, "lease "+l.ID)
	}
	ingests, err := client.ContentStore().ListStatuses(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ingests {
		found = append(found, "ingest "+s.Ref)
	}
	slices.Sort(found)
	return found
}

// mounted lists what is mounted on or from the daemon's directories.
func mounted(t *testing.T, d *daemon.Daemon) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Dir(filepath.Dir(d.Address()))
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return !strings.Contains(line, base)
	})
}

func TestImportFromTar(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		d, client := daemontest.Start(t, binary)
		ctx := t.Context()

		_, err := Find(ctx, client, testName, "overlayfs")
		var notReady *sandbox.NotReadyError
		if !errors.As(err, &notReady) || notReady.Check != "image" || !strings.Contains(notReady.Reason, "code-execution-sandbox image import") {
			t.Fatalf("find before import: %v", err)
		}

		first := good(t, file("version", 0o644, "1"))
		first.label = "first"
		archive := dockerArchive(t, first)
		var steps []Step
		var last Progress
		img, outcome, err := Import(ctx, client, Options{Name: testName, Progress: func(p Progress) {
			if len(steps) == 0 || steps[len(steps)-1] != p.Step {
				steps = append(steps, p.Step)
			}
			if p.Step == StepRead {
				last = p
			}
		}}, Tar(bytes.NewReader(archive)))
		if err != nil {
			t.Fatal(err)
		}
		if outcome != Imported {
			t.Errorf("outcome %q", outcome)
		}
		if !slices.Equal(steps, []Step{StepRead, StepUnpack, StepVerify}) || last.Done != int64(len(archive)) {
			t.Errorf("steps %v, read %d of %d bytes", steps, last.Done, len(archive))
		}
		if left := mounted(t, d); len(left) > 0 {
			t.Errorf("mounts left behind: %q", left)
		}
		_, id := first.config(t)
		if img.SourceID != id || img.Layers != 2 || img.Labels["what"] != "first" || img.Created.Year() != 2026 || img.Size == 0 {
			t.Errorf("image %+v", img)
		}
		found, err := Find(ctx, client, testName, "overlayfs")
		if err != nil || found.Digest != img.Digest || found.ChainID != img.ChainID || found.SourceID != img.SourceID {
			t.Fatalf("found %+v, %v", found, err)
		}
		// One manifest, one config, two layers, two snapshots, one record: no
		// lease, no ingest, no view, no index.
		once := held(t, client)
		if len(once) != 7 {
			t.Errorf("held: %q", once)
		}

		if _, outcome := importTar(t, client, archive); outcome != Unchanged {
			t.Errorf("second import: %q", outcome)
		}
		if again := held(t, client); !slices.Equal(once, again) {
			t.Errorf("held after the second import: %q", again)
		}

		// A sandbox on the first image keeps its tree, and only that.
		if _, err := client.NewContainer(ctx, "running", containerd.WithSnapshotter("overlayfs"), containerd.WithSpec(&specs.Spec{}),
			containerd.WithNewSnapshotView("running", containerd.NewImage(client, record(t, client)))); err != nil {
			t.Fatal(err)
		}
		second := good(t, file("version", 0o644, "2"))
		replaced, outcome := importTar(t, client, dockerArchive(t, second))
		if outcome != Replaced || replaced.Digest == img.Digest {
			t.Errorf("outcome %q", outcome)
		}
		if _, err := client.SnapshotService("overlayfs").Stat(ctx, img.ChainID); err != nil {
			t.Errorf("tree of the running container: %v", err)
		}
		if _, err := client.ContentStore().Info(ctx, digest.Digest(img.Digest)); err == nil {
			t.Error("content of the replaced image is still there")
		}

		if err := Remove(ctx, client, testName); err != nil {
			t.Fatal(err)
		}
		if err := Remove(ctx, client, testName); err != nil {
			t.Errorf("remove again: %v", err)
		}
		left := held(t, client)
		for _, what := range left {
			if strings.HasPrefix(what, "blob") || strings.HasPrefix(what, "image") {
				t.Errorf("left after remove: %s", what)
			}
		}
	})
}

func record(t *testing.T, client *containerd.Client) images.Image {
	t.Helper()
	found, err := client.ImageService().Get(t.Context(), testName)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
