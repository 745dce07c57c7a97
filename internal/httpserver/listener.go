package httpserver

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// limitListener bounds the connections that are open at a time. Who comes when
// all are taken gets the place of the connection that has been idle longest, so
// that peers who only hold connections keep nobody out; where none is idle they
// wait. netutil.LimitListener would have them wait for the idle ones, too.
type limitListener struct {
	net.Listener
	places chan struct{} // holds one for each open connection
	closed chan struct{}
	close  func()

	mu      sync.Mutex
	idle    []*limitedConn // guarded by mu; longest idle first
	waiting bool           // guarded by mu; the next one to be idle has to go
}

func newLimitListener(ln net.Listener, limit int) *limitListener {
	l := &limitListener{Listener: ln, places: make(chan struct{}, limit), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Accept returns the next connection once there is a place for it.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.places <- struct{}{}:
	default:
		l.evict()
		select {
		case l.places <- struct{}{}:
		case <-l.closed:
			_ = conn.Close()
			return nil, net.ErrClosed
		}
		l.mu.Lock()
		l.waiting = false
		l.mu.Unlock()
	}
	return &limitedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

// Close also ends an Accept that waits for a place.
func (l *limitListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// evict closes the connection that has been idle longest, or the next to be idle.
func (l *limitListener) evict() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) == 0 {
		l.waiting = true
		return
	}
	_ = l.idle[0].Close()
	l.idle = l.idle[1:]
}

// connState is the hook of an http.Server that serves l.
func (l *limitListener) connState(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*limitedConn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = slices.DeleteFunc(l.idle, func(other *limitedConn) bool { return other == c })
	switch {
	case state == http.StateIdle && l.waiting:
		l.waiting = false
		_ = c.Close()
	case state == http.StateIdle:
		l.idle = append(l.idle, c)
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
