package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/internal/daemon/daemontest"
)

// dockerAPI serves handler on a socket of its own.
func dockerAPI(t *testing.T, handler http.Handler) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ces") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

func TestDocker(t *testing.T) {
	const name = "registry.example:5000/team/runtime:latest"
	const stored = "in-the-containerd-image-store"
	socket := dockerAPI(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/images/" + name + "/json":
			_ = json.NewEncoder(w).Encode(map[string]any{"Id": "sha256:abc", "Size": 12, "Created": "2026-01-02T03:04:05Z"})
		case "/images/" + stored + "/json":
			_ = json.NewEncoder(w).Encode(map[string]any{"Id": "sha256:def", "Size": 12, "Descriptor": map[string]any{"size": 583}})
		case "/images/" + name + "/get":
			_, _ = io.WriteString(w, "the archive")
		case "/images/broken/json":
			w.WriteHeader(http.StatusInternalServerError)
			_ = json.NewEncoder(w).Encode(map[string]any{"message": "no space\nleft on device"})
		case "/images/mute/json":
			w.WriteHeader(http.StatusBadGateway)
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(map[string]any{"message": "No such image"})
		}
	}))
	t.Setenv("DOCKER_HOST", "unix://"+socket)
	for _, src := range []Source{Docker(socket), Docker("")} {
		id, size, err := src.stat(t.Context(), name)
		if id != "sha256:abc" || size != 12 || err != nil {
			t.Errorf("stat: %q, %d, %v", id, size, err)
		}
		archive, err := src.open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if string(text) != "the archive" || err != nil {
			t.Errorf("open: %q, %v", text, err)
		}
		if err := archive.Close(); err != nil {
			t.Error(err)
		}
	}
	if id, size, err := Docker("").stat(t.Context(), stored); id != "sha256:def" || size != 0 || err != nil {
		t.Errorf("stat: %q, %d, %v", id, size, err)
	}
	for image, want := range map[string]string{
		"absent": "image absent is not in Docker: build it with make docker-build",
		"broken": fmt.Sprintf("docker at %s refuses image broken: no space left on device", socket),
		"mute":   fmt.Sprintf("docker at %s refuses image mute: 502 Bad Gateway", socket),
	} {
		if _, _, err := Docker("").stat(t.Context(), image); err == nil || err.Error() != want {
			t.Errorf("%s: %v", image, err)
		}
	}
}

func TestDockerIsAway(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "s")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]string{
		filepath.Join(dir, "none"): "start Docker",
		stale:                      "is Docker running?",
	} {
		_, _, err := Docker(socket).stat(t.Context(), "any")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: %v", socket, err)
		}
	}
	t.Setenv("DOCKER_HOST", "tcp://localhost:2375")
	if _, _, err := Docker("").stat(t.Context(), "any"); err == nil || !strings.Contains(err.Error(), "only unix://") {
		t.Errorf("tcp: %v", err)
	}

	socket := dockerAPI(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	gone := errors.New("caller gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, gone)
	defer cancel()
	if _, _, err := Docker(socket).stat(ctx, "any"); !errors.Is(err, gone) {
		t.Errorf("canceled: %v", err)
	}
}

// TestDockerDiesWhileSending: what arrived must not be taken for the whole.
func TestDockerDiesWhileSending(t *testing.T) {
	_, client := daemontest.Start(t, "")
	archive := dockerArchive(t, good(t))
	socket := dockerAPI(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/json") {
			_ = json.NewEncoder(w).Encode(map[string]any{"Id": "sha256:abc"})
			return
		}
		// All but the end of the tar, then the connection breaks.
		_, _ = w.Write(archive[:len(archive)-1024])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	_ = importErr(t, client, Docker(socket)) // that it fails is what importErr asserts
	if left := held(t, client); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestImportFromRealDocker(t *testing.T) {
	if out, err := exec.Command("docker", "version").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs Docker: %v: %s", err, out)
		}
		t.Skipf("needs Docker: %v", err)
	}
	name := fmt.Sprintf("code-execution-sandbox-test-%d:latest", os.Getpid())
	docker := func(stdin []byte, args ...string) string {
		t.Helper()
		cmd := exec.Command("docker", args...)
		cmd.Stdin = bytes.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker %s: %v: %s", args[0], err, out)
		}
		return strings.TrimSpace(string(out))
	}
	load := func(text string) (id string) {
		t.Helper()
		a := good(t, file("version", 0o644, text))
		a.tag = name
		docker(dockerArchive(t, a), "load")
		return docker(nil, "image", "inspect", "--format", "{{.Id}}", name)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "image", "rm", "--force", name).Run() })

	daemontest.Each(t, func(t *testing.T, binary string) {
		_, client := daemontest.Start(t, binary)
		id := load(binary + " 1")
		opts := Options{Name: name}
		src := Docker("")
		img, outcome, err := Import(t.Context(), client, opts, src)
		if err != nil || outcome != Imported || img.SourceID != id {
			t.Fatalf("%+v, %q, %v", img, outcome, err)
		}
		if _, outcome, err := Import(t.Context(), client, opts, src); err != nil || outcome != Unchanged {
			t.Errorf("again: %q, %v", outcome, err)
		}
		saved := docker(nil, "save", name)
		if _, outcome, err := Import(t.Context(), client, opts, Tar(strings.NewReader(saved))); err != nil || outcome != Unchanged {
			t.Errorf("from docker save: %q, %v", outcome, err)
		}
		docker(nil, "image", "rm", name)
		if _, _, err := Import(t.Context(), client, opts, src); err == nil || !strings.Contains(err.Error(), "make docker-build") {
			t.Errorf("removed: %v", err)
		}
		id = load(binary + " 2")
		if img, outcome, err := Import(t.Context(), client, opts, src); err != nil || outcome != Replaced || img.SourceID != id {
			t.Errorf("%+v, %q, %v", img, outcome, err)
		}
		docker(nil, "image", "rm", name)

		// What docker import makes has a single layer.
		docker(layer(t, goodTree()...), "import", "-", name)
		if _, _, err := Import(t.Context(), client, opts, src); err == nil || !strings.Contains(err.Error(), "single layer") {
			t.Errorf("imported: %v", err)
		}
		docker(nil, "image", "rm", name)
	})
}
