package httpserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"code-execution-sandbox/internal/mcpserver"
	"code-execution-sandbox/internal/observe"
)

// modern is the first version of the protocol without sessions. Versions are
// dates and compare as strings.
const modern = "2026-07-28"

// drainBytes is how much of a body that is too large is read and thrown away,
// so that its sender gets to read the answer.
const drainBytes = 32 << 20

// The causes of a call's end.
var (
	errClientGone = errors.New("the client closed the connection")
	errWithdrawn  = errors.New("the client canceled the call")
)

// serveMCP hands a request on to the MCP handler, and watches over the calls
// in it: they end when their client goes away, withdraws them, or the server
// stops.
//
// Legacy clients withdraw a call in another request, which names it by its id
// and their session. The stateless handler behind has no sessions, so that its
// clients survive a restart; here one is minted, never checked, and used for
// nothing but to find the call.
func (s *Server) serveMCP(w *response, r *http.Request) {
	if !method(w, r, http.MethodPost) {
		return
	}
	if s.draining.Load() {
		w.Header().Set("Retry-After", "5")
		s.refuse(w, r, http.StatusServiceUnavailable, "shutting_down", "shutting_down", "the server is shutting down")
		return
	}
	body, ok := s.readBody(w, r)
	if !ok {
		return
	}

	var msg struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			RequestID json.RawMessage `json:"requestId"`
			Meta      struct {
				Traceparent string `json:"traceparent"`
			} `json:"_meta"`
		} `json:"params"`
	}
	_ = json.Unmarshal(body, &msg) // what is malformed, or a batch, is for the handler behind
	if !answerable(body) {
		fail(w, http.StatusBadRequest, "bad_request", "the id of a request must be a string or a whole number below 2^53: an answer could not name this one")
		return
	}

	session := r.Header.Get("Mcp-Session-Id")
	key := callKey{id: rand.Text()} // of no principal: nobody can name it
	legacy := r.Header.Get("Mcp-Protocol-Version") < modern
	switch {
	case legacy && msg.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", rand.Text())
	case legacy && msg.Method == "notifications/cancelled":
		s.calls.end(callKey{w.principal, session, string(msg.Params.RequestID)}, errWithdrawn)
	case legacy && msg.Method == "tools/call" && session != "" && len(msg.ID) > 0:
		key = callKey{w.principal, session, string(msg.ID)}
	}

	// Life ends the calls of this request. It is not the request's own
	// context, whose end would also end the answer.
	life, end := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer end(nil)
	defer context.AfterFunc(r.Context(), func() { end(errClientGone) })()
	if !s.calls.add(key, end) {
		fail(w, http.StatusBadRequest, "duplicate_id", "a call with this id is running in this session")
		return
	}
	defer s.calls.remove(key)

	// nginx buffers streams unless told not to. The headers are complete with
	// this: none may be set once a call has begun.
	w.Header().Set("X-Accel-Buffering", "no")
	ctx := observe.WithCaller(r.Context(), observe.Caller{
		Principal: w.principal,
		Address:   r.RemoteAddr,
		Agent:     r.UserAgent(),
		Protocol:  r.Header.Get("Mcp-Protocol-Version"),
		Trace:     msg.Params.Meta.Traceparent,
	})
	ctx = mcpserver.WithCarrier(ctx, life, func() { w.keepAlive(s.opts.KeepAlive) })
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.opts.MCP.ServeHTTP(w, r)
}

// answerable reports whether an answer can name the ids in a body: the handler
// behind keeps numbers as IEEE 754 doubles, and would answer to another id than
// was sent, for which no client waits.
func answerable(body []byte) bool {
	type request struct {
		ID json.RawMessage `json:"id"`
	}
	var batch []request
	if json.Unmarshal(body, &batch) != nil {
		batch = make([]request, 1)
		_ = json.Unmarshal(body, &batch[0])
	}
	return !slices.ContainsFunc(batch, func(r request) bool {
		number, err := strconv.ParseFloat(string(r.ID), 64)
		isNumber := err == nil || errors.Is(err, strconv.ErrRange)
		return isNumber && (number != math.Trunc(number) || math.Abs(number) >= 1<<53)
	})
}

// readBody reads a whole request, or answers it and returns false.
func (s *Server) readBody(w *response, r *http.Request) ([]byte, bool) {
	most := s.opts.MaxBodyBytes
	tooLarge := r.ContentLength > most
	var body []byte
	if !tooLarge {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, most+1)); err != nil {
			fail(w, http.StatusBadRequest, "bad_request", "the body could not be read")
			return nil, false
		}
		tooLarge = int64(len(body)) > most
	}
	if tooLarge {
		_, _ = io.CopyN(io.Discard, r.Body, drainBytes) // its end is what we want, and any error is one
		s.refuse(w, r, http.StatusRequestEntityTooLarge, "too_large", "request_too_large", "the request is larger than this server accepts; send less code or stdin")
		return nil, false
	}
	return body, true
}

// calls are the requests to the MCP endpoint that are being answered, and what
// ends the calls in each.
type calls struct {
	mu      sync.Mutex
	running map[callKey]context.CancelCauseFunc // guarded by mu
	cause   error                               // guarded by mu; ends every call, also those to come
}

type callKey struct{ principal, session, id string }

// add returns false when there is such a call already.
func (c *calls) add(key callKey, end context.CancelCauseFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, taken := c.running[key]; taken {
		return false
	}
	if c.running == nil {
		c.running = make(map[callKey]context.CancelCauseFunc)
	}
	c.running[key] = end
	if c.cause != nil {
		end(c.cause)
	}
	return true
}

func (c *calls) remove(key callKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, key)
}

// end ends a call if it runs.
func (c *calls) end(key callKey, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if end, ok := c.running[key]; ok {
		end(cause)
	}
}

// endAll ends every call, also those to come.
func (c *calls) endAll(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause = cause
	for _, end := range c.running {
		end(cause)
	}
}

func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running)
}
