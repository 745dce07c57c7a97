package httpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"code-execution-sandbox/internal/mcpserver"
	"code-execution-sandbox/internal/sandbox"
)

// wantError checks that an answer is an error of this package.
func wantError(t *testing.T, r reply, status int, code string) {
	t.Helper()
	var body struct {
		Error       string
		Description string `json:"error_description"`
	}
	if err := json.Unmarshal([]byte(r.body), &body); err != nil || body.Description == "" {
		t.Errorf("%d %q is not JSON with a description", r.status, r.body)
	}
	if r.status != status || body.Error != code {
		t.Errorf("got %d %q, want %d %q", r.status, body.Error, status, code)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type is %q", got)
	}
}

func TestRow1Health(t *testing.T) {
	var state atomic.Pointer[sandbox.NotReadyError]
	s := start(t, func(o *Options, _ *mcpserver.Options) {
		o.Health = healthFunc(func(context.Context) error {
			if err := state.Load(); err != nil {
				return err
			}
			return nil
		})
	})
	const none = "Authorization"
	if r := s.do("GET", "/healthz", "", none, ""); r.status != 200 || r.body != `{"status":"ok","version":"1.2.3"}`+"\n" {
		t.Errorf("got %d %s", r.status, r.body)
	}
	if r := s.do("POST", "/healthz", "", none, ""); r.status != 405 || r.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d with Allow %q", r.status, r.header.Get("Allow"))
	}
	if r := s.do("HEAD", "/healthz", "", none, ""); r.status != 200 || r.body != "" {
		t.Errorf("HEAD: got %d %q", r.status, r.body)
	}
	state.Store(&sandbox.NotReadyError{Check: "image", Reason: "not imported"})
	s.http.health = &health{check: s.http.opts.Health} // forgets the fresh answer
	if r := s.do("GET", "/healthz", "", none, ""); r.status != 503 || r.body != `{"status":"unavailable","check":"image","reason":"not imported"}`+"\n" {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// That the process answers is not a question for containerd, however long that
// takes to answer its own.
func TestLive(t *testing.T) {
	asked := make(chan struct{}, 1)
	s := start(t, func(o *Options, _ *mcpserver.Options) {
		o.Health = healthFunc(func(ctx context.Context) error {
			asked <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	unwell := make(chan reply, 1)
	go func() { unwell <- s.do("GET", "/healthz", "", "Authorization", "") }()
	<-asked
	if r := s.do("GET", "/healthz?live", "", "Authorization", ""); r.status != 200 || r.body != `{"status":"alive"}`+"\n" {
		t.Errorf("got %d %s", r.status, r.body)
	}
	select {
	case r := <-unwell:
		t.Errorf("the slow check was answered first: %d %s", r.status, r.body)
	default:
	}
	if r := <-unwell; r.status != 503 {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// Whatever a check says beside a NotReadyError stays inside.
func TestHealthHidesDetails(t *testing.T) {
	asked := 0
	s := start(t, func(o *Options, _ *mcpserver.Options) {
		o.Health = healthFunc(func(context.Context) error { asked++; return errors.New("SECRET") })
	})
	for range 5 {
		r := s.do("GET", "/healthz", "")
		if r.status != 503 || strings.Contains(r.body, "SECRET") || !strings.Contains(r.body, `"check":"internal"`) {
			t.Errorf("got %d %s", r.status, r.body)
		}
	}
	if asked == 5 {
		t.Error("every question went on to the check")
	}
}

func TestRow2NoToken(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "must not run", "")
		for _, body := range []string{body, "{not JSON", strings.Repeat("x", 9<<20)} {
			r := s.do("POST", "/mcp", body, append(headers, "Authorization", "")...)
			wantError(t, r, 401, "unauthorized")
			if got := r.header.Get("WWW-Authenticate"); got != `Bearer realm="code-execution-sandbox"` {
				t.Errorf("WWW-Authenticate is %q", got)
			}
			if !strings.Contains(r.body, "Authorization") {
				t.Errorf("%s does not name the header", r.body)
			}
		}
	})
}

func TestRow3Tokens(t *testing.T) {
	s := start(t)
	for _, header := range []string{
		"Bearer wrong-token-0123456789", "Bearer " + testToken + "x", "Bearer " + testToken[1:], "Bearer ", "Bearer",
		"Basic " + testToken, "Basic dXNlcjpwYXNz", testToken, "Bearer " + testToken + " " + testToken, "bearer\t" + testToken,
	} {
		for _, path := range []string{"/mcp", "/metrics", "/mcp?token=" + testToken + "&access_token=" + testToken} {
			if r := s.do("GET", path, "", "Authorization", header); r.status != 401 && r.status != 429 {
				t.Errorf("%s with %q: got %d", path, header, r.status)
			}
		}
	}
	// A right token passes also where wrong ones came in numbers.
	for _, header := range []string{"Bearer " + testToken, "bearer " + testToken, "BEARER  " + testToken, "Bearer another-token-0123456789"} {
		body, headers := legacyEra.call(1, "echo", "")
		if r := s.do("POST", "/mcp", body, append(headers, "Authorization", header)...); r.status != 200 {
			t.Errorf("with %q: got %d %s", header, r.status, r.body)
		}
	}
	if log := s.log.String(); !strings.Contains(log, "principal=old") || !strings.Contains(log, "principal=new") {
		t.Error("the log does not name the tokens")
	}
}

func TestFailedTokensAreLimited(t *testing.T) {
	s := start(t)
	limited := 0
	for range 40 {
		r := s.do("POST", "/mcp", "{}", "Authorization", "Bearer wrong-token-0123456789")
		switch r.status {
		case 401:
		case 429:
			limited++
			wantError(t, r, 429, "too_many_requests")
			if r.header.Get("Retry-After") == "" || r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("headers are %v", r.header)
			}
		default:
			t.Errorf("got %d", r.status)
		}
	}
	if limited == 0 {
		t.Error("none of 40 answers was 429")
	}
	if n := strings.Count(s.log.String(), "without a valid token"); n > 30 {
		t.Errorf("%d lines in the log", n)
	}
}

func TestRow4Origin(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "echo", "")
		for origin, want := range map[string]int{
			"":                           200,
			"http://evil.example":        403,
			"null":                       403,
			"https://app.example":        200,
			"HTTPS://APP.example":        200,
			"http://app.example":         403,
			"https://app.example:8443":   403,
			"https://app.example.evil":   403,
			"http://localhost:3000":      200,
			"http://127.0.0.1:6274":      200,
			"http://[::1]:6274":          200,
			"http://localhost.evil":      403,
			"http://evil@localhost:3000": 403,
			"http://localhost:3000/":     403,
			"file://localhost":           403,
		} {
			r := s.do("POST", "/mcp", body, append(headers, "Origin", origin)...)
			if r.status != want {
				t.Errorf("Origin %q: got %d, want %d", origin, r.status, want)
			}
			if want == 403 {
				wantError(t, r, 403, "forbidden_origin")
				if r := s.do("POST", "/mcp", body, append(headers, "Origin", origin, "Authorization", "")...); r.status != 403 {
					t.Errorf("Origin %q without a token: got %d, want 403", origin, r.status)
				}
			} else if got := r.header.Get("Access-Control-Allow-Origin"); got != origin {
				t.Errorf("Origin %q: Access-Control-Allow-Origin is %q", origin, got)
			}
		}
	}, func(o *Options, _ *mcpserver.Options) { o.AllowedOrigins = []string{"https://App.example/"} })
}

func TestCORSPreflight(t *testing.T) {
	s := start(t, func(o *Options, _ *mcpserver.Options) { o.AllowedOrigins = []string{"https://app.example"} })
	ask := func(origin string) reply {
		return s.do("OPTIONS", "/mcp", "", "Authorization", "", "Origin", origin,
			"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,mcp-protocol-version")
	}
	r := ask("https://app.example")
	if allowed := strings.ToLower(r.header.Get("Access-Control-Allow-Headers")); r.status != 204 ||
		!strings.Contains(allowed, "authorization") || !strings.Contains(allowed, "mcp-protocol-version") {
		t.Errorf("got %d %v", r.status, r.header)
	}
	if r := ask("https://evil.example"); r.status != 403 || r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("evil: got %d %v", r.status, r.header)
	}
	if r := s.do("OPTIONS", "/mcp", ""); r.status != 405 {
		t.Errorf("without an Origin: got %d, want 405", r.status)
	}
}

func TestRow5HostOnLoopback(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "echo", "")
		for host, want := range map[string]int{
			"localhost":          200,
			"localhost:8788":     200,
			"LOCALHOST.":         200,
			"a.localhost:1":      200,
			"127.0.0.1:8788":     200,
			"127.1.2.3":          200,
			"[::1]:8788":         200,
			"[::1]":              200,
			"evil.example":       403,
			"evil.example:8788":  403,
			"localhost.evil":     403,
			"127.0.0.1.evil":     403,
			"10.0.0.1":           403,
			"sandbox.example":    200,
			"Sandbox.example:80": 200,
			"ported.example:443": 200,
			"ported.example:444": 403,
			"ported.example":     403,
		} {
			r := s.do("POST", "/mcp", body, append(headers, "Host", host)...)
			if r.status != want {
				t.Errorf("Host %q: got %d %s, want %d", host, r.status, r.body, want)
			}
			if want == 403 {
				wantError(t, r, 403, "forbidden_host")
			}
		}
	}, func(o *Options, _ *mcpserver.Options) {
		o.AllowedHosts = []string{"Sandbox.Example", "ported.example:443"}
	})
}

func TestRow6Methods(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		_, headers := e.request(1, "ping", "", "")
		for _, method := range []string{"GET", "DELETE", "PUT", "PATCH", "HEAD"} {
			r := s.do(method, "/mcp", "", headers...)
			if r.status != 405 || r.header.Get("Allow") != "POST" {
				t.Errorf("%s: got %d with Allow %q", method, r.status, r.header.Get("Allow"))
			}
		}
	})
}

func TestRow7TooLarge(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "echo"+strings.Repeat(" ", 300_000), "")
		for name, reader := range map[string]io.Reader{
			"with a length": strings.NewReader(body),
			"chunked":       struct{ io.Reader }{strings.NewReader(body)},
		} {
			res := s.open(t.Context(), "POST", "/mcp", reader, headers...)
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, reply{res.StatusCode, res.Header, string(b)}, 413, "request_too_large")
			if res.Close {
				t.Errorf("%s: the connection is closed", name)
			}
		}
		if r := s.run(e, "echo", ""); r.status != 200 {
			t.Errorf("afterwards: got %d", r.status)
		}
	}, func(o *Options, _ *mcpserver.Options) { o.MaxBodyBytes = 100_000 })
}

func TestRow8ContentType(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.call(1, "echo", "")
		for _, test := range []struct {
			name, value string
			want        int
		}{
			{"Content-Type", "text/plain", 415},
			{"Content-Type", "", 415},
			{"Content-Type", "application/json; charset=utf-8", 200},
			{"Accept", "*/*", 200},
			{"Accept", "application/json", 400},
		} {
			if r := s.do("POST", "/mcp", body, append(headers, test.name, test.value)...); r.status != test.want {
				t.Errorf("%s %q: got %d, want %d", test.name, test.value, r.status, test.want)
			}
		}
	})
}

func TestRow9Malformed(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		call, headers := e.call(1, "must not run", "")
		for _, body := range []string{"", "{", "nonsense", "[]", "[" + call + "]", `"x"`, "null", "7", `{"jsonrpc":"2.0","id":null,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":{},"method":"tools/call","params":[]}`, strings.Repeat("[", 100_000),
			strings.Replace(call, `"arguments": {`, `"arguments": {"x": `+strings.Repeat("[", 1_000_000)+strings.Repeat("]", 1_000_000)+`,`, 1)} {
			if r := s.do("POST", "/mcp", body, headers...); r.status != 400 {
				t.Errorf("%.40q: got %d %s, want 400", body, r.status, r.body)
			}
		}
		if r := s.run(e, "echo", ""); r.status != 200 {
			t.Errorf("afterwards: got %d", r.status)
		}
	})
}

func TestRow10Headers(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		r := s.run(e, "echo", "")
		if got := r.header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("Content-Type is %q", got)
		}
		if got := r.header.Get("Cache-Control"); !strings.Contains(got, "no-cache") {
			t.Errorf("Cache-Control is %q", got)
		}
		if got := r.header.Get("X-Accel-Buffering"); got != "no" {
			t.Errorf("X-Accel-Buffering is %q", got)
		}
	})
}

func TestRow11NotFound(t *testing.T) {
	s := start(t)
	for _, path := range []string{
		"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server",
		"/.well-known/openid-configuration", "/register", "/", "/sse", "/debug/pprof/", "/debug/vars", "/mcp/", "//mcp", "/mcp/../healthz",
	} {
		for _, method := range []string{"GET", "POST"} {
			wantError(t, s.do(method, path, "{}", "Authorization", ""), 404, "not_found")
		}
	}
}

func TestMetrics(t *testing.T) {
	s := start(t)
	s.run(legacyEra, "echo", "")
	s.do("GET", "/metrics", "", "Authorization", "")
	r := s.do("GET", "/metrics", "", "Content-Type", "", "Accept", "")
	for _, want := range []string{
		`code_execution_sandbox_calls_total{language="bash",outcome="exited"} 1`,
		`code_execution_sandbox_http_refusals_total{reason="token"} 1`,
		`code_execution_sandbox_build_info{`,
		`go_goroutines `,
	} {
		if !strings.Contains(r.body, want) {
			t.Errorf("no %s in %d %.2000s", want, r.status, r.body)
		}
	}
	if r := s.do("POST", "/metrics", ""); r.status != 405 {
		t.Errorf("POST: got %d", r.status)
	}
	if r := start(t, func(o *Options, _ *mcpserver.Options) { o.Gatherer = nil }).do("GET", "/metrics", ""); r.status != 404 {
		t.Errorf("without a gatherer: got %d", r.status)
	}
}

func TestNewRefuses(t *testing.T) {
	good := Options{MCP: http.NotFoundHandler(), Health: healthFunc(nil), Tokens: []Token{{Secret: testToken}}}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"no handler":  func(o *Options) { o.MCP = nil },
		"no health":   func(o *Options) { o.Health = nil },
		"no token":    func(o *Options) { o.Tokens = nil },
		"short token": func(o *Options) { o.Tokens = []Token{{Name: "x", Secret: "SECRET"}} },
	} {
		opts := good
		change(&opts)
		if _, err := New(opts); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A panic outside the MCP handler is answered while nothing was sent, and cuts
// the answer off afterwards.
func TestPanicInHandler(t *testing.T) {
	s := prepare(t)
	s.http.opts.MCP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Late") != "" {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		panic("SECRET_REASON")
	})
	s.listen()
	wantError(t, s.do("POST", "/mcp", "{}"), 500, "internal_error")
	res := s.open(t.Context(), "POST", "/mcp", strings.NewReader("{}"), "Late", "1")
	defer res.Body.Close()
	if b, err := io.ReadAll(bufio.NewReader(res.Body)); err == nil {
		t.Errorf("got %q as if it were whole", b)
	}
	if !strings.Contains(s.log.String(), "SECRET_REASON") {
		t.Error("the reason is not in the log")
	}
}
