package httpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"code-execution-sandbox/internal/mcpserver"
	"code-execution-sandbox/internal/sandbox"
)

func TestRow36Progress(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "wait", `"progressToken": "tok"`)
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		defer res.Body.Close()
		p := s.fake.next()
		lines := bufio.NewReader(res.Body)
		var got strings.Builder
		for strings.Count(got.String(), "notifications/progress") < 3 {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(line)
		}
		close(p.leave)
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(rest)
		messages := reply{body: got.String()}.messages(t)
		last := messages[len(messages)-1]
		if last.Result == nil {
			t.Errorf("the answer ends with %+v, not with the result", last)
		}
		before := -1.0
		for _, m := range messages[:len(messages)-1] {
			if m.Method != "notifications/progress" || m.Params.ProgressToken != "tok" || m.Params.Progress <= before || !strings.HasPrefix(m.Params.Message, "running") {
				t.Errorf("after %v: got %+v", before, m)
			}
			before = m.Params.Progress
		}
	}, func(o *Options, _ *mcpserver.Options) { o.KeepAlive = time.Hour })
}

func TestRow37KeepAlive(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "wait", "")
		// The answer's headers come while the program runs.
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		defer res.Body.Close()
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("got %d %v", res.StatusCode, res.Header)
		}
		p := s.fake.next()
		lines := bufio.NewReader(res.Body)
		for range 3 {
			comment, err := lines.ReadString('\n')
			if err != nil || comment != ": keep-alive\n" {
				t.Fatalf("got %q, %v", comment, err)
			}
			if empty, err := lines.ReadString('\n'); err != nil || empty != "\n" {
				t.Fatalf("got %q, %v", empty, err)
			}
		}
		close(p.leave)
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Fatal(err)
		}
		if all := (reply{body: string(rest)}).messages(t); len(all) != 1 || all[0].Result == nil {
			t.Errorf("got %s, want one result", rest)
		}
	})
}

// A refused call keeps the status of its error, and a short one is not made
// longer by comments.
func TestNoCommentsInShortAnswers(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		for _, code := range []string{"echo", ""} {
			if r := s.run(e, code, ""); strings.Contains(r.body, ": keep-alive") {
				t.Errorf("%q: got %q", code, r.body)
			}
		}
	}, func(o *Options, _ *mcpserver.Options) { o.KeepAlive = time.Minute })
}

func (s *service) cancel(session string, id any) {
	s.t.Helper()
	rawID, _ := json.Marshal(id)
	r := s.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+string(rawID)+`,"reason":"x"}}`,
		"Mcp-Protocol-Version", "2025-11-25", "Mcp-Session-Id", session)
	if r.status != 202 {
		s.t.Errorf("got %d %s, want 202", r.status, r.body)
	}
}

func TestRow39Cancelled(t *testing.T) {
	for _, id := range []any{7, "7", "an id \"quoted\""} {
		s := start(t)
		answers := map[string]*http.Response{}
		programs := map[string]*program{}
		for _, session := range []string{"one", "two", ""} {
			body, headers := legacyEra.call(id, "wait", "")
			answers[session] = s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), append(headers, "Mcp-Session-Id", session)...)
			defer answers[session].Body.Close()
			programs[session] = s.fake.next()
		}
		s.cancel("three", id)
		s.cancel("", id)
		s.cancel("one", "another id")
		s.cancel("one", id)
		programs["one"].endedBy(t, errWithdrawn)
		for _, session := range []string{"two", ""} {
			if len(programs[session].ended) > 0 {
				t.Errorf("the call of session %q was ended", session)
			}
			close(programs[session].leave)
			b, err := io.ReadAll(answers[session].Body)
			if err != nil || !strings.Contains(string(b), "exit_code: 0") {
				t.Errorf("session %q: got %s, %v", session, b, err)
			}
		}
	}
}

// Another token cannot end a call, even if it knows the session.
func TestCancelledByAnotherToken(t *testing.T) {
	s := start(t)
	body, headers := legacyEra.call(7, "wait", "")
	res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), append(headers, "Mcp-Session-Id", "one")...)
	defer res.Body.Close()
	p := s.fake.next()
	s.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`,
		"Mcp-Session-Id", "one", "Authorization", "Bearer another-token-0123456789")
	if len(p.ended) > 0 {
		t.Error("the call was ended")
	}
	close(p.leave)
	_, _ = io.Copy(io.Discard, res.Body)
}

func TestDuplicateID(t *testing.T) {
	s := start(t)
	body, headers := legacyEra.call(7, "wait", "")
	headers = append(headers, "Mcp-Session-Id", "one")
	res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
	defer res.Body.Close()
	p := s.fake.next()
	wantError(t, s.do("POST", "/mcp", body, headers...), 400, "duplicate_id")
	close(p.leave)
	_, _ = io.Copy(io.Discard, res.Body)
	body, _ = legacyEra.call(7, "echo", "")
	if r := s.do("POST", "/mcp", body, headers...); r.status != 200 {
		t.Errorf("after the end of the first: got %d %s", r.status, r.body)
	}
}

func TestRow40ConnectionDrop(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		for _, meta := range []string{"", `"progressToken": 1`} {
			ctx, drop := context.WithCancel(t.Context())
			body, headers := e.call(1, "wait", meta)
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+s.addr+"/mcp", strings.NewReader(body))
				req.Header.Set("Authorization", "Bearer "+testToken)
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Accept", "*/*")
				for i := 0; i < len(headers); i += 2 {
					req.Header.Set(headers[i], headers[i+1])
				}
				res, err := s.client.Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			p := s.fake.next()
			drop()
			p.endedBy(t, errClientGone)
			<-done
		}
	})
}

// A batch, which 2025-03-26 alone has, ends as a whole with its connection.
func TestBatchDrop(t *testing.T) {
	s := start(t)
	one, _ := legacyEra.call(1, "wait", "")
	two, _ := legacyEra.call(2, "wait", "")
	conn := s.dial()
	writeRequest(t, conn, "["+one+","+two+"]", "Mcp-Protocol-Version", "2025-03-26")
	p, q := s.fake.next(), s.fake.next()
	if p.req.ID == q.req.ID {
		t.Error("two calls have the same id")
	}
	conn.Close()
	p.endedBy(t, errClientGone)
	q.endedBy(t, errClientGone)
}

// Calls that run keep nobody from asking for the health.
func TestRow43Health(t *testing.T) {
	s := start(t)
	before := goleak.IgnoreCurrent()
	var conns []net.Conn
	var programs []*program
	for range 50 {
		conn := s.dial()
		body, headers := modernEra.call(1, "wait", `"progressToken": 1`)
		writeRequest(t, conn, body, headers...)
		conns, programs = append(conns, conn), append(programs, s.fake.next())
	}
	if r := s.do("GET", "/healthz", ""); r.status != 200 {
		t.Errorf("got %d", r.status)
	}
	for i, conn := range conns {
		conn.Close()
		programs[i].endedBy(t, errClientGone)
	}
	s.client.CloseIdleConnections()
	settled(t, before)
}

func TestRow44NothingStays(t *testing.T) {
	s := start(t)
	before := goleak.IgnoreCurrent()
	body, _ := legacyEra.request(1, "initialize", `"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}`, "")
	for range 1000 {
		s.do("POST", "/mcp", body)
	}
	for i := range 1000 {
		conn := s.dial()
		body, headers := eras[i%2].call(1, "wait", "")
		writeRequest(t, conn, body, append(headers, "Mcp-Session-Id", "one")...)
		p := s.fake.next()
		conn.Close()
		p.endedBy(t, errClientGone)
		for s.http.calls.count() > 0 { // the id is used again
			time.Sleep(time.Millisecond)
		}
	}
	s.client.CloseIdleConnections()
	settled(t, before)
}

func TestRow45Panic(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		m := s.run(e, "panic", "").last(t)
		if text := m.text(t); !m.isError() || !strings.HasPrefix(text, "internal error (request ") || strings.Contains(text, "SECRET") {
			t.Errorf("got isError %v, %q", m.isError(), text)
		}
		if r := s.run(e, "echo", ""); r.status != 200 {
			t.Errorf("afterwards: got %d", r.status)
		}
		log := s.log.String()
		if !strings.Contains(log, "SECRET_REASON") || !strings.Contains(log, "wire_test.go") || !strings.Contains(log, "outcome=internal") {
			t.Errorf("the log has no reason, no stack or no audit event: %s", log)
		}
	})
}

// serve runs Serve as a process would. The channel gives its result.
func (s *service) serve(ctx context.Context) (served chan error) {
	s.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr, s.listener = ln.Addr().String(), ln
	served = make(chan error, 1)
	go func() { served <- s.http.Serve(ctx, ln) }()
	return served
}

func waitServed(t *testing.T, served chan error) error {
	t.Helper()
	select {
	case err := <-served:
		return err
	case <-time.After(hang):
		t.Fatal("Serve does not return")
		return nil
	}
}

func TestRow46ShutdownWaits(t *testing.T) {
	inBothEras(t, func(t *testing.T, _ *service, e era) {
		s := prepare(t, func(o *Options, _ *mcpserver.Options) { o.ShutdownGrace = time.Hour })
		ctx, stop := context.WithCancel(t.Context())
		served := s.serve(ctx)
		body, headers := e.call(1, "wait", "")
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		defer res.Body.Close()
		p := s.fake.next()
		// A connection on which a request has begun is still served.
		late := s.dial()
		if _, err := io.WriteString(late, "POST /mcp HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
		stop()
		for !s.http.draining.Load() {
			time.Sleep(time.Millisecond)
		}
		for _, path := range []string{"/mcp", "/healthz"} {
			r := s.handle(path)
			if r.status != 503 || !strings.Contains(r.body, "shutting down") {
				t.Errorf("%s: got %d %s", path, r.status, r.body)
			}
		}
		close(p.leave)
		b, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(b), "exit_code: 0") {
			t.Errorf("the running call got %s, %v", b, err)
		}
		late.Close()
		if err := waitServed(t, served); err != nil {
			t.Error(err)
		}
		if _, err := net.Dial("tcp", s.addr); err == nil {
			t.Error("the port is still open")
		}
	})
}

// Until the delay is over calls are taken, on connections that end with them,
// and only the health says that the server is leaving.
func TestShutdownDelay(t *testing.T) {
	inBothEras(t, func(t *testing.T, _ *service, e era) {
		s := prepare(t, func(o *Options, _ *mcpserver.Options) { o.ShutdownDelay = time.Hour })
		ctx, stop := context.WithCancel(t.Context())
		served := s.serve(ctx)
		if r := s.run(e, "echo", ""); r.status != 200 {
			t.Errorf("before: got %d", r.status)
		}
		stop()
		for !s.http.leaving.Load() {
			time.Sleep(time.Millisecond)
		}
		if r := s.do("GET", "/healthz", "", "Authorization", ""); r.status != 503 || !strings.Contains(r.body, "shutting down") {
			t.Errorf("/healthz: got %d %s", r.status, r.body)
		}
		if r := s.do("GET", "/healthz?live", "", "Authorization", ""); r.status != 200 {
			t.Errorf("/healthz?live: got %d %s", r.status, r.body)
		}
		body, headers := e.call(1, "echo", "")
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(b), "exit_code: 0") || !res.Close {
			t.Errorf("a call: got %d %s, %v; the connection is closed: %v", res.StatusCode, b, err, res.Close)
		}
		_ = s.listener.Close() // ends the delay, too
		if err := waitServed(t, served); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// handle asks without a connection.
func (s *service) handle(path string) reply {
	w := newRecorder()
	method := "GET"
	if path == "/mcp" {
		method = "POST"
	}
	req, _ := http.NewRequestWithContext(s.t.Context(), method, "http://localhost"+path, strings.NewReader("{}"))
	req.Header.Set("Authorization", "Bearer "+testToken)
	s.http.ServeHTTP(w, req)
	return reply{w.Code, w.Header(), w.Body.String()}
}

func TestRow46ShutdownEnds(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, set := range map[string]func(*Options){
		"after the grace": func(o *Options) { o.ShutdownGrace = 20 * time.Millisecond },
		"in a hurry":      func(o *Options) { o.ShutdownDelay, o.ShutdownGrace, o.Hurry = time.Hour, time.Hour, closed },
	} {
		t.Run(name, func(t *testing.T) { shutdownEnds(t, set) })
	}
}

func shutdownEnds(t *testing.T, set func(*Options)) {
	inBothEras(t, func(t *testing.T, _ *service, e era) {
		s := prepare(t, func(o *Options, _ *mcpserver.Options) { set(o) })
		ctx, stop := context.WithCancel(t.Context())
		served := s.serve(ctx)
		body, headers := e.call(1, "wait", "")
		res := s.open(t.Context(), "POST", "/mcp", strings.NewReader(body), headers...)
		defer res.Body.Close()
		p := s.fake.next()
		stop()
		p.endedBy(t, sandbox.ErrUnavailable)
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		m := reply{body: string(b)}.last(t)
		if text := m.text(t); !m.isError() || text != "canceled: the server is shutting down; the program was killed\n(no output)" {
			t.Errorf("got isError %v, %q", m.isError(), text)
		}
		if err := waitServed(t, served); err != nil {
			t.Error(err)
		}
	})
}

func TestServeFails(t *testing.T) {
	s := prepare(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := s.http.Serve(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestMaxConnections(t *testing.T) {
	s := prepare(t, func(o *Options, _ *mcpserver.Options) { o.MaxConnections = 1 })
	ctx, stop := context.WithCancel(t.Context())
	served := s.serve(ctx)
	first, second := s.dial(), s.dial()
	for _, conn := range []net.Conn{first, second} {
		_ = conn.SetDeadline(time.Now().Add(hang))
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := io.Copy(io.Discard, first); err != nil {
		t.Errorf("two connections are open: %v", err)
	}
	stop()
	if err := waitServed(t, served); err != nil {
		t.Error(err)
	}
}

// An answer names the request that it belongs to, or there is none.
func TestIdsAreAnsweredAsSent(t *testing.T) {
	s := start(t)
	const ping = `{"jsonrpc":"2.0","id":%s,"method":"ping"}`
	for id, want := range map[string]int{
		`1`: 200, `0`: 200, `-7`: 200, `"x"`: 200, `9007199254740991`: 200, `"9007199254740993"`: 200,
		`9007199254740993`: 400, `-9007199254740993`: 400, `1.5`: 400, `1e300`: 400, `1e999`: 400,
	} {
		r := s.do("POST", "/mcp", fmt.Sprintf(ping, id), "Mcp-Protocol-Version", "2025-06-18")
		if r.status != want || want == 200 && !strings.Contains(r.body, `"id":`+id) {
			t.Errorf("id %s: %d %s, want %d with this id", id, r.status, r.body, want)
		}
	}
	r := s.do("POST", "/mcp", "["+fmt.Sprintf(ping, "1")+","+fmt.Sprintf(ping, "0.5")+"]", "Mcp-Protocol-Version", "2025-03-26")
	if r.status != 400 {
		t.Errorf("a batch: %d %s", r.status, r.body)
	}
}

// A client that closes its side has gone as far as HTTP can tell. It is told so,
// or gets no answer at all, rather than an empty one.
func TestHalfClosedConnection(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "wait", "")
		conn := s.dial().(*net.TCPConn)
		head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + testToken +
			"\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
		for i := 0; i < len(headers); i += 2 {
			head += headers[i] + ": " + headers[i+1] + "\r\n"
		}
		if _, err := fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body); err != nil {
			t.Fatal(err)
		}
		p := s.fake.next()
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		p.endedBy(t, errClientGone)
		_ = conn.SetReadDeadline(time.Now().Add(hang))
		if got, err := io.ReadAll(conn); len(got) > 0 && !strings.Contains(string(got), "canceled: ") || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("answered %q, %v", got, err)
		}
	})
}

// What the service adds to a program: HTTP, MCP and the record, with the
// client's share.
func BenchmarkCall(b *testing.B) {
	for _, e := range eras {
		b.Run(e.name, func(b *testing.B) {
			s := start(b, func(o *Options, m *mcpserver.Options) { o.Logger, m.Logger = nil, nil })
			body, headers := e.call(1, "echo", "")
			for b.Loop() {
				if r := s.do("POST", "/mcp", body, headers...); r.status != 200 {
					b.Fatal(r)
				}
			}
		})
	}
}
