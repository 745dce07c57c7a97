package httpserver

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// limited serves two connections at a time, with a handler that answers when it
// is let go. It returns a way to open a connection and ask something on it.
func limited(t *testing.T) (ln *limitListener, ask func() net.Conn, asked <-chan struct{}, letGo chan<- struct{}) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln = newLimitListener(raw, 2)
	in, out := make(chan struct{}, 100), make(chan struct{}, 100)
	server := &http.Server{
		ConnState: ln.connState, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			in <- struct{}{}
			<-out
		}),
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if len(ln.places) != 0 {
			t.Errorf("%d places are taken after the end", len(ln.places))
		}
	})
	return ln, func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		return conn
	}, in, out
}

// answered reads one answer from conn.
func answered(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	_ = resp.Body.Close()
}

func gone(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection is still open: %d, %v", n, err)
	}
}

// The connection that has been idle longest goes for a new one.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	ln, ask, asked, letGo := limited(t)
	idle := func() int {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		return len(ln.idle)
	}
	var conns []net.Conn
	for i := range 5 {
		conn := ask()
		<-asked
		letGo <- struct{}{}
		answered(t, conn)
		conns = append(conns, conn)
		for idle() < min(i+1, 2) { // the server notes it after the answer
			time.Sleep(time.Millisecond)
		}
	}
	for _, conn := range conns[:3] {
		gone(t, conn)
	}
	if _, err := conns[4].Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	<-asked
	letGo <- struct{}{}
	answered(t, conns[4])
}

// One that is at work stays; who comes waits for the first to be idle.
func TestBusyConnectionsStay(t *testing.T) {
	_, ask, asked, letGo := limited(t)
	first, second := ask(), ask()
	<-asked
	<-asked
	third := ask()
	select {
	case <-asked:
		t.Fatal("three connections are served, two are allowed")
	case <-time.After(100 * time.Millisecond):
	}
	letGo <- struct{}{}
	<-asked // the third
	letGo <- struct{}{}
	letGo <- struct{}{}
	for _, conn := range []net.Conn{first, second, third} {
		answered(t, conn)
	}
}
