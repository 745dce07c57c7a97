package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

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

func record(t *testing.T, client *containerd.Client) images.Image {
	t.Helper()
	found, err := client.ImageService().Get(t.Context(), testName)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func importErr(t *testing.T, client *containerd.Client, src Source) error {
	t.Helper()
	_, _, err := Import(t.Context(), client, Options{Name: testName}, src)
	if err == nil {
		t.Fatal("import succeeded")
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %v", err)
	}
	return err
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

		first := good(t, file("version", 0o644, "1"), file("usr/lib/code-execution-sandbox/environment", 0o644, " Bash\nand Python. \n"))
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
		if img.SourceID != id || img.Layers != 2 || img.Labels["what"] != "first" || img.Created.Year() != 2026 || img.Size == 0 || img.Environment != "Bash and Python." {
			t.Errorf("image %+v", img)
		}
		found, err := Find(ctx, client, testName, "overlayfs")
		if err != nil || !reflect.DeepEqual(found, img) {
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
		if _, err := client.ContentStore().Info(ctx, digest.Digest(img.Digest)); !errdefs.IsNotFound(err) {
			t.Errorf("content of the replaced image: %v", err)
		}

		for range 2 {
			if err := Remove(ctx, client, testName); err != nil {
				t.Fatal(err)
			}
		}
		for _, what := range held(t, client) {
			if strings.HasPrefix(what, "blob") || strings.HasPrefix(what, "image") || strings.Contains(what, replaced.ChainID) {
				t.Errorf("left after remove: %s", what)
			}
		}
	})
}

func TestImportRepairs(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		ctx := t.Context()
		a := good(t)
		archive := dockerArchive(t, a)
		img, _ := importTar(t, client, archive)
		whole := held(t, client)
		_, id := a.config(t)

		for _, broken := range []struct {
			name, reason string
			damage       func() error
		}{
			{"not verified", "verified", func() error {
				r := record(t, client)
				r.Labels[labelVerified] = "0 overlayfs " + img.Digest
				_, err := client.ImageService().Update(ctx, r, "labels")
				return err
			}},
			{"verified as another", "verified", func() error {
				r := record(t, client)
				r.Labels[labelVerified] = rules + " overlayfs sha256:" + strings.Repeat("0", 64)
				_, err := client.ImageService().Update(ctx, r, "labels")
				return err
			}},
			{"not unpacked", "unpacked", func() error {
				return client.SnapshotService("overlayfs").Remove(ctx, img.ChainID)
			}},
			{"without content", "missing", func() error {
				r := record(t, client)
				return client.ContentStore().Delete(ctx, r.Target.Digest)
			}},
		} {
			// From Docker nothing is read but the id, from a tar all.
			for _, src := range []Source{fakeSource{id: id, archive: archive}, Tar(bytes.NewReader(archive))} {
				if err := broken.damage(); err != nil {
					t.Fatal(err)
				}
				if _, err := Find(ctx, client, testName, "overlayfs"); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), broken.reason) {
					t.Errorf("%s: find: %v", broken.name, err)
				}
				got, outcome, err := Import(ctx, client, Options{Name: testName}, src)
				if err != nil || outcome != Repaired || got.Digest != img.Digest {
					t.Errorf("%s: %q, %v", broken.name, outcome, err)
				}
				if now := held(t, client); !slices.Equal(now, whole) {
					t.Errorf("%s: held: %q", broken.name, now)
				}
			}
		}
	})
}

// fakeSource is a source that knows its id. When archive is nil it must not be
// read.
type fakeSource struct {
	id      string
	archive []byte
}

func (s fakeSource) stat(context.Context, string) (string, int64, error) { return s.id, 1, nil }

func (s fakeSource) open(context.Context, string) (io.ReadCloser, error) {
	if s.archive == nil {
		return nil, errors.New("read although nothing changed")
	}
	return io.NopCloser(bytes.NewReader(s.archive)), nil
}

func TestImportFollowsTheSource(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		ctx := t.Context()
		opts := Options{Name: testName}
		a := good(t)
		_, id := a.config(t)

		var total int64
		opts.Progress = func(p Progress) { total = max(total, p.Total) }
		archive := dockerArchive(t, a)
		img, _, err := Import(ctx, client, opts, fakeSource{id, archive})
		if err != nil || img.SourceID != id {
			t.Fatalf("%+v, %v", img, err)
		}
		if total != int64(len(archive)) {
			t.Errorf("an estimate that was too small ends as %d, want %d", total, len(archive))
		}
		if _, outcome, err := Import(ctx, client, opts, fakeSource{id: id}); err != nil || outcome != Unchanged {
			t.Errorf("%q, %v", outcome, err)
		}

		// Docker's containerd image store names an image by its index.
		layout, index := ociArchive(t, good(t, file("other", 0o644, "")))
		img, outcome, err := Import(ctx, client, opts, fakeSource{index, layout})
		if err != nil || outcome != Replaced || img.SourceID != index || img.Layers != 2 {
			t.Errorf("%+v, %q, %v", img, outcome, err)
		}
		if _, outcome, err := Import(ctx, client, opts, fakeSource{id: index}); err != nil || outcome != Unchanged {
			t.Errorf("%q, %v", outcome, err)
		}

		// The name was moved between the two questions: what came is recorded.
		img, _, err = Import(ctx, client, opts, fakeSource{"sha256:" + strings.Repeat("f", 64), dockerArchive(t, a)})
		if err != nil || img.SourceID != id {
			t.Errorf("%+v, %v", img, err)
		}
	})
}

func TestImportReadsEveryArchive(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		other := archived{tag: "other:latest", layers: [][]byte{layer(t, dir("tmp", 0o777))}}
		twice := good(t)
		twice.tag = "a-second-name:latest"
		layout, _ := ociArchive(t, good(t))
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		if _, err := z.Write(layout); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		untagged := good(t)
		untagged.tag = ""
		for name, archive := range map[string][]byte{
			"one of several":        dockerArchive(t, other, good(t), twice),
			"one under two names":   dockerArchive(t, twice, good(t)),
			"under another name":    dockerArchive(t, twice),
			"without a name":        dockerArchive(t, untagged),
			"OCI layout":            layout,
			"OCI layout, gzipped":   zipped.Bytes(),
			"followed by more zero": append(dockerArchive(t, good(t)), make([]byte, 1<<20)...),
		} {
			rest := bytes.NewReader(archive)
			img, _, err := Import(t.Context(), client, Options{Name: testName}, Tar(rest))
			if err != nil || img.Layers != 2 {
				t.Errorf("%s: %+v, %v", name, img, err)
			}
			if rest.Len() > 0 {
				t.Errorf("%s: %d bytes unread", name, rest.Len())
			}
			if err := Remove(t.Context(), client, testName); err != nil {
				t.Fatal(err)
			}
			if left := held(t, client); len(left) > 0 {
				t.Errorf("%s: left: %q", name, left)
			}
		}
	})
}

func TestImportRefusesArchive(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		foreign := good(t)
		foreign.arch = "s390x"
		whole := dockerArchive(t, good(t))
		other := archived{tag: "other:latest", layers: [][]byte{layer(t)}}
		third := archived{tag: "third:latest", layers: [][]byte{layer(t)}, label: "third"}
		for name, c := range map[string]struct {
			archive []byte
			says    string
		}{
			"another platform": {dockerArchive(t, foreign), "is for linux/s390x"},
			"nothing":          {nil, "docker save"},
			"text":             {bytes.Repeat([]byte("no tar\n"), 1000), "docker save"},
			"any tar":          {layer(t, goodTree()...), "docker save"},
			"cut":              {whole[:len(whole)/2], "unexpected EOF"},
			"two others":       {dockerArchive(t, other, third), "holds 2 images"},
		} {
			err := importErr(t, client, Tar(bytes.NewReader(c.archive)))
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			if left := held(t, client); len(left) > 0 {
				t.Errorf("%s: left: %q", name, left)
			}
		}
	})
}

func TestImportRefusesTree(t *testing.T) {
	device := &tar.Header{Typeflag: tar.TypeChar, Name: "opt/null", Mode: 0o600, Devmajor: 1, Devminor: 3}
	hidden := &tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}
	capable := file("usr/bin/ping", 0o755, "ping")
	capable.PAXRecords = map[string]string{
		// cap_net_raw=ep as the kernel stores it (revision 2).
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
	}
	without := func(name string) *tar.Header { // a whiteout
		return file(path.Join(path.Dir(name), ".wh."+path.Base(name)), 0, "")
	}
	var many []*tar.Header
	for i := range maxOffenders + 3 {
		many = append(many, file(fmt.Sprintf("opt%02d", i), 0o666, ""))
	}
	cases := []struct {
		name string
		more []*tar.Header
		want []string
	}{
		{"fit", []*tar.Header{hidden, dir("root", 0o700), dir("var", 0o2755)}, nil},
		{"setuid", []*tar.Header{file("usr/bin/su", 0o4755, "")}, []string{"setuid file /usr/bin/su"}},
		{"setgid", []*tar.Header{file("usr/bin/chage", 0o2755, "")}, []string{"setgid file /usr/bin/chage"}},
		{"capabilities", []*tar.Header{capable}, []string{"file capabilities on /usr/bin/ping"}},
		{"device", []*tar.Header{device}, []string{"device node /opt/null"}},
		{"fifo for all", []*tar.Header{{Typeflag: tar.TypeFifo, Name: "opt/fifo", Mode: 0o666}}, []string{"world-writable /opt/fifo"}},
		{"sticky directory", []*tar.Header{dir("var/tmp", 0o1777)}, []string{"world-writable /var/tmp"}},
		{"linked tmp", []*tar.Header{without("tmp"), link("tmp", "var/tmp")}, []string{"/tmp is not a directory"}},
		{"closed tmp", []*tar.Header{dir("tmp", 0o755)}, []string{"/tmp has mode 0755, not 1777"}},
		{"no targets", []*tar.Header{without("proc"), without("dev")}, []string{"directory /dev is missing", "directory /proc is missing"}},
		{"no launcher", []*tar.Header{without("usr/lib/code-execution-sandbox")}, []string{launcher + " is missing"}},
		{"linked launcher", []*tar.Header{link(launcher[1:], "/usr/bin/bash")}, []string{launcher + " is not a regular file"}},
		{"closed launcher", []*tar.Header{file(launcher[1:], 0o750, "")}, []string{launcher + " has mode 0750: everybody must be able to read and execute it"}},
		{"closed directory", []*tar.Header{dir("usr/lib/code-execution-sandbox", 0o700)}, []string{"/usr/lib/code-execution-sandbox has mode 0700: everybody must be able to enter it"}},
		{"no python", []*tar.Header{without("usr/bin/python3.13")}, []string{"/usr/bin/python3 is missing"}},
		{"no bash", []*tar.Header{without("bin")}, []string{"/bin/bash is missing"}},
		{"no user", []*tar.Header{file("etc/passwd", 0o644, "root:x:0:0::/:\nx1000:x:10000:1000::/:\n")}, []string{"/etc/passwd has no user with id 1000"}},
		{"no passwd", []*tar.Header{without("etc/passwd")}, []string{"file /etc/passwd is missing"}},
		// Followed on the host, the link would lead to a user with that id.
		{"passwd of elsewhere", []*tar.Header{link("etc/passwd", "/proc/1/root/etc/passwd")}, []string{"file /etc/passwd is missing"}},
	}
	daemontest.Each(t, func(t *testing.T, binary string) {
		d, client := daemontest.Start(t, binary)
		before, _ := importTar(t, client, dockerArchive(t, good(t, file("before", 0o644, ""))))
		kept := held(t, client)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				_, _, err := Import(t.Context(), client, Options{Name: testName}, Tar(bytes.NewReader(dockerArchive(t, good(t, c.more...)))))
				if c.want == nil {
					if err != nil {
						t.Fatal(err)
					}
					if _, outcome := importTar(t, client, dockerArchive(t, good(t, file("before", 0o644, "")))); outcome != Replaced {
						t.Fatalf("outcome %q", outcome)
					}
					return
				}
				var unfit *UnfitError
				if !errors.As(err, &unfit) {
					t.Fatalf("import: %v", err)
				}
				if !slices.Equal(unfit.Offenders, c.want) || unfit.More != 0 {
					t.Errorf("offenders %q and %d more, want %q", unfit.Offenders, unfit.More, c.want)
				}
				if now, err := Find(t.Context(), client, testName, "overlayfs"); err != nil || now.Digest != before.Digest {
					t.Errorf("the image before: %v, %v", now.Digest, err)
				}
				if now := held(t, client); !slices.Equal(now, kept) {
					t.Errorf("held: %q", now)
				}
				if left := mounted(t, d); len(left) > 0 {
					t.Errorf("mounts left behind: %q", left)
				}
			})
		}
		t.Run("many", func(t *testing.T) {
			err := importErr(t, client, Tar(bytes.NewReader(dockerArchive(t, good(t, many...)))))
			var unfit *UnfitError
			if !errors.As(err, &unfit) || len(unfit.Offenders) != maxOffenders || unfit.More != 3 {
				t.Errorf("import: %v", err)
			}
		})
		t.Run("single layer", func(t *testing.T) {
			err := importErr(t, client, Tar(bytes.NewReader(dockerArchive(t, archived{layers: [][]byte{layer(t, goodTree()...)}}))))
			var unfit *UnfitError
			if !errors.As(err, &unfit) || !strings.Contains(err.Error(), "single layer") {
				t.Errorf("import: %v", err)
			}
		})
	})
}

// TestImportToFullDisk: the reason is told, once the archive does not fit and
// once the layers do not, and nothing takes up the little space.
func TestImportToFullDisk(t *testing.T) {
	daemontest.Require(t)
	daemontest.Each(t, func(t *testing.T, binary string) {
		opts := daemontest.Options(t, binary)
		if err := os.MkdirAll(opts.Root, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", opts.Root, "tmpfs", 0, "size=4m"); err != nil {
			t.Fatal(err)
		}
		d, err := daemon.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		client, err := containerd.New(d.Address(), containerd.WithDefaultNamespace(daemontest.Namespace))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, size := range []int{2 << 20, 6 << 20} {
			big := file("big", 0o644, string(make([]byte, size)))
			err := importErr(t, client, Tar(bytes.NewReader(dockerArchive(t, good(t, big)))))
			if !strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), "docker save") {
				t.Errorf("%d bytes: %v", size, err)
			}
			if left := held(t, client); len(left) > 0 {
				t.Errorf("%d bytes: left: %q", size, left)
			}
		}
		// Stop unmounts what is mounted under its directories, the tmpfs too.
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestImportCanceled(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		archive := dockerArchive(t, good(t))
		for _, at := range []Step{StepRead, StepUnpack, StepVerify} {
			ctx, cancel := context.WithCancelCause(t.Context())
			_, _, err := Import(ctx, client, Options{Name: testName, Progress: func(p Progress) {
				if p.Step == at {
					cancel(errors.New("enough"))
				}
			}}, Tar(bytes.NewReader(archive)))
			if err == nil {
				t.Errorf("%s: import succeeded", at)
			}
			if left := held(t, client); len(left) > 0 {
				t.Errorf("%s: left: %q", at, left)
			}
		}
	})
}

func TestImportsAtTheSameTime(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		archive := dockerArchive(t, good(t))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, _, err := Import(t.Context(), client, Options{Name: testName}, Tar(bytes.NewReader(archive))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := Find(t.Context(), client, testName, "overlayfs"); err != nil {
			t.Error(err)
		}
		if now := held(t, client); len(now) != 7 {
			t.Errorf("held: %q", now)
		}
	})
}

func TestImportKeepsOutOfMoby(t *testing.T) {
	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		ctx := namespaces.WithNamespace(t.Context(), "moby")
		if _, _, err := Import(ctx, client, Options{Name: testName}, Tar(bytes.NewReader(dockerArchive(t, good(t))))); err == nil {
			t.Error("import succeeded")
		}
	})
}

func TestFindWithoutContainerd(t *testing.T) {
	d, client := daemontest.Start(t, "")
	if err := d.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Find(ctx, client, testName, "overlayfs")
	var notReady *sandbox.NotReadyError
	if !errors.Is(err, sandbox.ErrUnavailable) || errors.As(err, &notReady) {
		t.Errorf("find: %v", err)
	}
}
