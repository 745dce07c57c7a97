package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/internal/runner"
)

// notifySocket is a systemd that only listens; it returns what is told.
func notifySocket(t *testing.T) <-chan string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	told := make(chan string, 1000)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			told <- string(buf[:n])
		}
	}()
	return told
}

// await waits for a message that contains want.
func await(t *testing.T, told <-chan string, want string) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case got := <-told:
			if strings.Contains(got, want) {
				return
			}
		case <-late:
			t.Fatalf("systemd was never told %q", want)
		}
	}
}

// testManager runs a manager for a server whose /healthz is what health says.
func testManager(t *testing.T, patience time.Duration, health http.HandlerFunc) {
	t.Helper()
	m := &manager{
		handler: health, load: func() runner.Load { return runner.Load{Running: 2} }, log: slog.New(slog.DiscardHandler),
		ending: 5 * time.Minute, every: 10 * time.Millisecond, patience: patience,
	}
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.run(ctx)
	}()
	t.Cleanup(func() {
		stop(errors.New("the test ends"))
		<-done
	})
}

func TestReadyServiceIsAlive(t *testing.T) {
	told := notifySocket(t)
	testManager(t, time.Hour, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) })
	if got := <-told; got != "READY=1" {
		t.Errorf("told first: %q", got)
	}
	await(t, told, "WATCHDOG=1\nSTATUS=ready: 2 running")
}

// A server that cannot run programs is alive, and is not said to be ready
// before systemd would lose patience.
func TestServiceThatIsNotReadyIsAlive(t *testing.T) {
	told := notifySocket(t)
	testManager(t, time.Hour, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"status":"unavailable","check":"containerd","reason":"it is\naway"}`)
	})
	if got, want := <-told, "WATCHDOG=1\nSTATUS=not ready: containerd: it is away"; got != want {
		t.Errorf("told first: %q, want %q", got, want)
	}
}

func TestServiceIsStartedWhenPatienceEnds(t *testing.T) {
	told := notifySocket(t)
	testManager(t, 0, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	await(t, told, "READY=1")
}

// A server that no longer answers is not said to be alive.
func TestServiceThatHangsIsNotAlive(t *testing.T) {
	told := notifySocket(t)
	asked := make(chan struct{}, 1000)
	testManager(t, time.Hour, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
		time.Sleep(time.Millisecond) // the manager has given up by now
	})
	for range 3 {
		<-asked
	}
	for len(told) > 0 {
		if got := <-told; strings.Contains(got, "WATCHDOG") || strings.Contains(got, "READY") {
			t.Fatalf("told of a server that hangs: %q", got)
		}
	}
}

func TestServiceSaysThatItStops(t *testing.T) {
	told := notifySocket(t)
	t.Run("", func(t *testing.T) { testManager(t, time.Hour, func(http.ResponseWriter, *http.Request) {}) })
	await(t, told, "STOPPING=1\nEXTEND_TIMEOUT_USEC=300000000\n")
}

// The test runs itself again with a socket, as systemd would.
func TestSocketActivation(t *testing.T) {
	if os.Getenv("LISTEN_FDS") != "" {
		var log bytes.Buffer
		ln, err := inherited(":1", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil || ln == nil {
			t.Fatalf("got %v, %v", ln, err)
		}
		if !strings.Contains(log.String(), "http_addr has no effect") {
			t.Errorf("the log does not tell of the other port: %s", log.String())
		}
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "hello")
		_ = conn.Close()
		return
	}
	if ln, err := inherited(":1", slog.New(slog.DiscardHandler)); ln != nil || err != nil {
		t.Fatalf("without systemd: got %v, %v", ln, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// LISTEN_PID is that of the process itself, which only a shell can know before.
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" -test.run "^TestSocketActivation$"`, self)
	cmd.ExtraFiles = []*os.File{file}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	got, err := io.ReadAll(conn)
	if string(got) != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.Bytes())
	}
}
