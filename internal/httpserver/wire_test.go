package httpserver

// The service over the wire, with a real MCP handler and a fake sandbox, in
// both eras of the protocol.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"code-execution-sandbox/internal/mcpserver"
	"code-execution-sandbox/internal/observe"
	"code-execution-sandbox/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testToken = "a-token-of-the-test-0123456789"
	hang      = 10 * time.Second // what takes longer hangs
)

var testLimits = sandbox.Limits{
	MaxCodeBytes: 64 << 10, MaxStdinBytes: 1 << 20,
	DefaultTimeout: 10 * time.Second, MaxTimeout: 60 * time.Second,
	MaxOutputBytes: 1 << 20, Memory: 1 << 30, CPUs: 1, PIDs: 128, Tmp: 64 << 20, Shm: 16 << 20,
}

// fake is an Executor whose programs do as their code says.
type fake struct {
	t       testing.TB
	started chan *program
}

// program is a program that waits: the code "wait".
type program struct {
	req   sandbox.Request
	leave chan struct{} // closed to let it end
	ended chan error    // gives the cause when its context ended first
}

func (f *fake) Execute(ctx context.Context, req sandbox.Request) (*sandbox.Result, error) {
	result := &sandbox.Result{Status: sandbox.StatusExited, Timeout: req.Timeout, Duration: time.Millisecond}
	out := func(s string) {
		result.Stdout, result.StdoutHead, result.StdoutBytes = []byte(s), len(s), int64(len(s))
	}
	switch req.Code {
	case "echo":
		out("echo\n")
	case "exit 3":
		result.ExitCode = 3
		out("out\n")
	case "binary":
		out("\xff\xfe\x00a")
	case "panic":
		panic("SECRET_REASON")
	case "busy":
		return nil, &sandbox.BusyError{Running: 4, Queued: 8}
	case "timeout":
		result.Status = sandbox.StatusTimedOut
	case "wait":
		p := &program{req, make(chan struct{}), make(chan error, 1)}
		req.Started()
		f.started <- p
		select {
		case <-p.leave:
		case <-ctx.Done():
			result.Status = sandbox.StatusCanceled
			p.ended <- context.Cause(ctx)
		}
	default:
		f.t.Errorf("executed %q", req.Code)
	}
	return result, nil
}

// next waits for the next program that waits.
func (f *fake) next() *program {
	f.t.Helper()
	select {
	case p := <-f.started:
		return p
	case <-time.After(hang):
		f.t.Fatal("no program was started")
		return nil
	}
}

// endedBy waits for the end of p's context.
func (p *program) endedBy(t *testing.T, want error) {
	t.Helper()
	select {
	case cause := <-p.ended:
		if !errors.Is(cause, want) {
			t.Errorf("the program was ended by %v, want %v", cause, want)
		}
	case <-time.After(hang):
		t.Fatal("the program still runs")
	}
}

type healthFunc func(context.Context) error

func (f healthFunc) Health(ctx context.Context) error { return f(ctx) }

// service is a whole service behind a real socket.
type service struct {
	t        testing.TB
	http     *Server
	fake     *fake
	log      *lockedBuffer
	addr     string
	listener net.Listener // nil unless serve was called
	client   *http.Client
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// prepare returns a service that does not listen yet.
func prepare(t testing.TB, change ...func(*Options, *mcpserver.Options)) *service {
	t.Helper()
	s := &service{t: t, fake: &fake{t, make(chan *program, 100)}, log: &lockedBuffer{}}
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reg := observe.NewRegistry("1.2.3")
	tool := mcpserver.Options{
		Executor:         observe.New(s.fake, observe.Options{Logger: logger, Registerer: reg, Limits: testLimits}),
		Limits:           testLimits,
		Version:          "1.2.3",
		Logger:           logger,
		ProgressInterval: 20 * time.Millisecond,
	}
	opts := Options{
		Health:     healthFunc(func(context.Context) error { return nil }),
		Gatherer:   reg,
		Registerer: reg,
		Tokens:     []Token{{Name: "old", Secret: "another-token-0123456789"}, {Name: "new", Secret: testToken}},
		KeepAlive:  20 * time.Millisecond,
		Version:    "1.2.3",
		Logger:     logger,
	}
	for _, c := range change {
		c(&opts, &tool)
	}
	opts.MCP = mcpserver.New(tool).Handler()
	var err error
	if s.http, err = New(opts); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	s.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		// Row 47.
		if strings.Contains(s.log.String(), testToken) {
			t.Error("the token is in the log")
		}
	})
	return s
}

func start(t testing.TB, change ...func(*Options, *mcpserver.Options)) *service {
	t.Helper()
	s := prepare(t, change...)
	s.listen()
	return s
}

// listen serves without an end other than the test's.
func (s *service) listen() {
	server := httptest.NewServer(s.http)
	s.t.Cleanup(server.Close)
	s.addr = server.Listener.Addr().String()
}

// reply is an answer read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

// message returns the JSON-RPC messages of an answer, as a stream or not.
func (r reply) messages(t *testing.T) []message {
	t.Helper()
	var all []message
	for line := range strings.Lines(r.body) {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			if !strings.HasPrefix(line, "{") {
				continue
			}
			data = line
		}
		var m message
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		all = append(all, m)
	}
	return all
}

// last returns the message that an answer ends with.
func (r reply) last(t *testing.T) message {
	t.Helper()
	all := r.messages(t)
	if len(all) == 0 {
		t.Fatalf("no message in %d %q", r.status, r.body)
	}
	return all[len(all)-1]
}

type message struct {
	Method string
	Params struct {
		ProgressToken any
		Progress      float64
		Message       string
	}
	Result map[string]any
	Error  *struct {
		Code    int
		Message string
		Data    map[string]any
	}
}

// text returns the text of a tool's result.
func (m message) text(t *testing.T) string {
	t.Helper()
	content, _ := m.Result["content"].([]any)
	if len(content) != 1 {
		t.Fatalf("%d blocks in %v, want 1", len(content), m.Result)
	}
	return content[0].(map[string]any)["text"].(string)
}

func (m message) isError() bool {
	failed, _ := m.Result["isError"].(bool)
	return failed
}

// do sends a request; a header of "" is left out.
func (s *service) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	res := s.open(s.t.Context(), method, path, strings.NewReader(body), headers...)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (s *service) open(ctx context.Context, method, path string, body io.Reader, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		switch name, value := headers[i], headers[i+1]; {
		case name == "Host":
			req.Host = value
		case value == "":
			req.Header.Del(name)
		default:
			req.Header.Set(name, value)
		}
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// era builds requests of one era.
type era struct {
	name    string
	version string
}

var (
	legacyEra = era{"legacy", "2025-11-25"}
	modernEra = era{"modern", "2026-07-28"}
	eras      = []era{legacyEra, modernEra}
)

// request returns the body and the headers of a request; params are the members
// of an object, meta those of its _meta.
func (e era) request(id any, method, params, meta string) (body string, headers []string) {
	headers = []string{"Mcp-Protocol-Version", e.version}
	if e == modernEra {
		if meta != "" {
			meta = ", " + meta
		}
		meta = `"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},` +
			`"io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"}` + meta
		headers = append(headers, "Mcp-Method", method)
		if method == "tools/call" {
			headers = append(headers, "Mcp-Name", "execute_code")
		}
	}
	if meta != "" {
		if params != "" {
			params += ", "
		}
		params += `"_meta": {` + meta + `}`
	}
	rawID, _ := json.Marshal(id)
	return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "method": %q, "params": {%s}}`, rawID, method, params), headers
}

func (e era) call(id any, code, meta string) (body string, headers []string) {
	rawCode, _ := json.Marshal(code)
	return e.request(id, "tools/call", fmt.Sprintf(`"name": "execute_code", "arguments": {"language": "bash", "code": %s}`, rawCode), meta)
}

// run calls the tool and reads the answer.
func (s *service) run(e era, code, meta string) reply {
	s.t.Helper()
	body, headers := e.call(1, code, meta)
	return s.do("POST", "/mcp", body, headers...)
}

// inBothEras runs a test per era, each with a service of its own.
func inBothEras(t *testing.T, test func(t *testing.T, s *service, e era), change ...func(*Options, *mcpserver.Options)) {
	for _, e := range eras {
		t.Run(e.name, func(t *testing.T) { test(t, start(t, change...), e) })
	}
}

// settled fails the test unless the goroutines that were started since before
// end.
func settled(t *testing.T, before goleak.Option) {
	t.Helper()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// dial opens a bare connection.
func (s *service) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(hang))
	return conn
}

// writeRequest writes a POST to conn and returns a reader of the answer.
func writeRequest(t *testing.T, conn net.Conn, body string, headers ...string) *bufio.Reader {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n", testToken, len(body))
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	b.WriteString("\r\n" + body)
	if _, err := io.WriteString(conn, b.String()); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn)
}

// newRecorder is for requests without a connection.
func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }
