package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"code-execution-sandbox/internal/sandbox"
)

// probeTimeout bounds how long one socket has to answer.
const probeTimeout = 3 * time.Second

// candidates are the sockets of the daemon of the host, and of the one that
// Docker runs for itself where the host has none.
var candidates = []string{
	"/run/containerd/containerd.sock",
	"/run/docker/containerd/containerd.sock",
	"/var/run/docker/containerd/containerd.sock",
}

// Find returns the address of a containerd that answers: the given one, or
// when that is empty the first of the host's own and Docker's. If there is
// none, the error is a *sandbox.NotReadyError that tells of each socket.
func Find(ctx context.Context, address string) (string, error) {
	tried := candidates
	if address != "" {
		tried = []string{strings.TrimPrefix(address, "unix://")}
	}
	var reasons []string
	for _, socket := range tried {
		err := Probe(ctx, socket)
		if err == nil {
			return socket, nil
		}
		reasons = append(reasons, socket+": "+err.Error())
	}
	remedy := "install or start containerd, or set containerd.address"
	if address != "" {
		remedy = "start that containerd, or correct containerd.address"
	}
	return "", &sandbox.NotReadyError{
		Check:  "containerd",
		Reason: fmt.Sprintf("no containerd answers (%s): %s", strings.Join(reasons, "; "), remedy),
	}
}

// Probe returns nil if a containerd that is ready answers at socket.
func Probe(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errors.New("no answer in time"))
	defer cancel()
	// The client dials lazily and would wait for a socket that is not there.
	if err := dial(ctx, socket); err != nil {
		return err
	}
	client, err := containerd.New(socket)
	if err != nil {
		return err
	}
	defer client.Close()
	return serving(ctx, client)
}

// dial finds out whether anybody listens at socket.
func dial(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		return conn.Close()
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such socket")
	case errors.Is(err, fs.ErrPermission):
		return errors.New("permission denied, run this as root")
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nobody listens")
	}
	return err
}

// serving waits until the daemon says that it serves.
func serving(ctx context.Context, client *containerd.Client) error {
	ok, err := client.IsServing(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case !ok:
		return errors.New("not serving")
	}
	return nil
}
