package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Source is where an image comes from: Docker or Tar.
type Source interface {
	// stat returns the image's id and its size in bytes, empty and zero when
	// they are not known before reading.
	stat(ctx context.Context, name string) (id string, size int64, err error)
	// open returns the image as an archive.
	open(ctx context.Context, name string) (io.ReadCloser, error)
}

// DefaultDockerSocket is Docker's own default.
const DefaultDockerSocket = "/var/run/docker.sock"

// Tar is an image archive: what docker save writes, or an OCI layout as a tar;
// plain, or compressed with gzip or zstd. It is read once, to its end.
func Tar(r io.Reader) Source { return tarSource{r} }

type tarSource struct{ r io.Reader }

func (tarSource) stat(context.Context, string) (string, int64, error) { return "", 0, nil }

func (s tarSource) open(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(s.r), nil
}

// Docker is the Docker daemon that listens on the unix socket. An empty socket
// means the one of the environment variable DOCKER_HOST, or
// DefaultDockerSocket. It works with every image store of Docker, since it asks
// Docker for the archive that docker save writes.
func Docker(socket string) Source { return dockerSource{socket} }

type dockerSource struct{ socket string }

// statTimeout bounds the question for an image's id, which Docker answers from
// memory. The export has no such bound: Docker may write the whole of it to
// disk before the first byte comes.
const statTimeout = 30 * time.Second

func (s dockerSource) stat(ctx context.Context, name string) (string, int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statTimeout, errors.New("docker does not answer"))
	defer cancel()
	body, err := s.get(ctx, name, "json")
	if err != nil {
		return "", 0, err
	}
	defer body.Close()
	var image struct {
		ID         string `json:"Id"`
		Size       int64
		Descriptor *struct{}
	}
	if err := json.NewDecoder(body).Decode(&image); err != nil {
		return "", 0, fmt.Errorf("read docker's answer: %w", err)
	}
	if image.Descriptor != nil {
		// Only the containerd image store tells it, and its size is that of
		// blobs and unpacked layers together, twice what comes.
		image.Size = 0
	}
	return image.ID, image.Size, nil
}

func (s dockerSource) open(ctx context.Context, name string) (io.ReadCloser, error) {
	return s.get(ctx, name, "get")
}

// get asks Docker's API for one of an image's resources.
func (s dockerSource) get(ctx context.Context, name, what string) (io.ReadCloser, error) {
	socket, err := s.path()
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	// No version in the path: each daemon answers with the one it likes best.
	target := url.URL{Scheme: "http", Host: "docker", Path: "/images/" + name + "/" + what}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask docker for image %s: %w", name, err)
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no docker socket at %s: start Docker, name its socket in DOCKER_HOST, or import a tar that docker save wrote", socket)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("docker socket %s: permission denied: run this as root", socket)
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("docker at %s: %w", socket, context.Cause(ctx))
	case err != nil:
		// The URL in front of the real error would only puzzle.
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err
		}
		return nil, fmt.Errorf("docker at %s: %w: is Docker running?", socket, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("image %s is not in Docker: build it with make docker-build", name)
	}
	var answer struct{ Message string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&answer); err != nil || answer.Message == "" {
		answer.Message = resp.Status
	}
	return nil, fmt.Errorf("docker at %s refuses image %s: %s", socket, name, strings.Join(strings.Fields(answer.Message), " "))
}

// path is the socket to use.
func (s dockerSource) path() (string, error) {
	if s.socket != "" {
		return s.socket, nil
	}
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		return DefaultDockerSocket, nil
	}
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return "", fmt.Errorf("DOCKER_HOST is %q: only unix:// sockets can be used; import a tar that docker save wrote instead", host)
	}
	return path, nil
}
