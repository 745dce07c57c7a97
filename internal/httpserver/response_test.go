package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"code-execution-sandbox/internal/mcpserver"
)

// TestKeepAliveTiming runs in the bubble's own time.
func TestKeepAliveTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		w := newResponse(rec, time.Minute)
		w.keepAlive(5 * time.Second)
		w.keepAlive(5 * time.Second) // a batch asks once per call
		after := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := rec.Body.String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		const beat = ": keep-alive\n\n"
		after(4*time.Second, "")
		after(2*time.Second, beat) // at 5 s
		if _, err := w.Write([]byte("event\n\n")); err != nil {
			t.Fatal(err)
		}
		after(4*time.Second+900*time.Millisecond, beat+"event\n\n") // until 10.9 s
		after(time.Second, beat+"event\n\n"+beat)                   // at 11 s, 5 s after the event
		w.end()
		if _, err := w.Write([]byte("late")); !errors.Is(err, errEnded) {
			t.Errorf("a write after the end: %v", err)
		}
		if err := w.FlushError(); !errors.Is(err, errEnded) {
			t.Errorf("a flush after the end: %v", err)
		}
		w.keepAlive(time.Second)
		after(time.Hour, beat+"event\n\n"+beat)
	})
}

// A client that does not read its stream is dropped, and its call ends.
func TestStalledClient(t *testing.T) {
	s := prepare(t, func(o *Options, m *mcpserver.Options) {
		o.KeepAlive = time.Hour
		m.ProgressInterval = time.Millisecond
	})
	s.http.writeTimeout = 100 * time.Millisecond
	server := &http.Server{Handler: s.http, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(4096)
		return ctx
	}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(ln) }()
	defer func() { _, _ = server.Close(), <-done }()
	s.addr = ln.Addr().String()

	for _, e := range eras {
		conn := s.dial()
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		body, headers := e.call(1, "wait", `"progressToken": "`+strings.Repeat("x", 8000)+`"`)
		writeRequest(t, conn, body, headers...)
		s.fake.next().endedBy(t, errClientGone)
		conn.Close()
	}
}

// The deadlines of one request do not reach the next one on its connection, and
// the read timeout does not reach a call that runs.
func TestTimeoutsLeaveCallsAlone(t *testing.T) {
	s := prepare(t)
	s.http.writeTimeout = 50 * time.Millisecond
	server := &http.Server{Handler: s.http, ReadTimeout: 50 * time.Millisecond}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(ln) }()
	defer func() { _, _ = server.Close(), <-done }()
	s.addr = ln.Addr().String()

	for _, e := range eras {
		body, headers := e.call(1, "wait", "")
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		p := s.fake.next()
		time.Sleep(200 * time.Millisecond)
		if len(p.ended) > 0 {
			t.Errorf("%s: the call was ended by %v", e.name, <-p.ended)
		}
		close(p.leave)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.Contains(string(b), "exit_code: 0") {
			t.Errorf("%s: got %s, %v", e.name, b, err)
		}
		time.Sleep(100 * time.Millisecond) // past the deadline of the last write
	}
}

// A body that stops coming is not waited for.
func TestSlowBody(t *testing.T) {
	s := prepare(t)
	server := &http.Server{Handler: s.http, ReadTimeout: 50 * time.Millisecond}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(ln) }()
	defer func() { _, _ = server.Close(), <-done }()
	s.addr = ln.Addr().String()
	conn := s.dial()
	if _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+testToken+
		"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400 ") {
		t.Errorf("got %q, %v", b, err)
	}
}
