package httpserver

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// response is the answer to one request. It bounds every write in time, since
// a deadline for the whole answer would end streams, and can keep a stream
// alive: it commits the headers and sends SSE comments while nothing else is
// sent. Clients and proxies give up on a call that stays silent, Claude Code
// 60 s after it was sent.
//
// Its methods may be called at the same time, except Header, whose map must be
// complete before keepAlive is called.
type response struct {
	http.ResponseWriter
	ctl     *http.ResponseController
	timeout time.Duration // of a write

	principal string // the name of the request's token

	leaving func() bool // nil, or whether the server is about to end

	mu    sync.Mutex
	code  int         // guarded by mu; 0 until the headers are sent
	last  time.Time   // guarded by mu; of the last write
	timer *time.Timer // guarded by mu; nil without keepAlive
	ended bool        // guarded by mu; the handler has returned
}

func newResponse(w http.ResponseWriter, timeout time.Duration) *response {
	r := &response{ResponseWriter: w, ctl: http.NewResponseController(w), timeout: timeout}
	r.extend()
	return r
}

var errEnded = errors.New("the request has been answered")

func (r *response) WriteHeader(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.writeHeader(code)
	}
}

// writeHeader must be called with mu held.
func (r *response) writeHeader(code int) {
	if r.code == 0 && code >= http.StatusOK {
		r.code = code
		if r.leaving != nil && r.leaving() {
			// The next call would meet a closed door.
			r.Header().Set("Connection", "close")
		}
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *response) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write(p)
}

// write must be called with mu held.
func (r *response) write(p []byte) (int, error) {
	if r.ended {
		return 0, errEnded
	}
	if r.code == 0 {
		r.writeHeader(http.StatusOK)
	}
	r.extend()
	r.last = time.Now()
	return r.ResponseWriter.Write(p)
}

// FlushError sends what was written; http.ResponseController calls it.
func (r *response) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flush()
}

// flush must be called with mu held.
func (r *response) flush() error {
	if r.ended {
		return errEnded
	}
	r.extend()
	return r.ctl.Flush()
}

// extend gives the next write its time. A deadline stays with the connection,
// so every request begins with this.
func (r *response) extend() {
	_ = r.ctl.SetWriteDeadline(time.Now().Add(r.timeout)) // in tests there may be no connection
}

// keepAlive sends a comment whenever nothing was sent for interval, until end.
func (r *response) keepAlive(interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.timer != nil {
		return
	}
	r.timer = time.AfterFunc(interval, func() { r.beat(interval) })
}

func (r *response) beat(interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	wait := interval
	if silent := time.Since(r.last); silent < interval {
		wait -= silent
	} else if _, err := r.write([]byte(": keep-alive\n\n")); err != nil || r.flush() != nil {
		return // the client is gone
	}
	r.timer.Reset(wait)
}

// end stops all writing. It must be called before the handler returns.
func (r *response) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// status returns the status sent, 0 for none yet.
func (r *response) status() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.code
}
