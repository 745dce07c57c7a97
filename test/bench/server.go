package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/cgroup"
)

// token is the bearer token of the servers, which nobody but us can reach.
const token = "a-token-for-the-benchmark-0123456789"

// server is the real binary with a configuration of its own.
type server struct {
	url     string
	pid     int
	parent  string         // cgroup above its sandboxes
	pool    map[string]int // prepared sandboxes by language, when full
	cgroups *cgroup.Host

	cmd      *exec.Cmd
	done     chan struct{}
	log      bytes.Buffer // read after done
	clients  []*mcp.ClientSession
	requests *http.Client
}

// startServer starts the binary and waits until it is ready. settings are lines
// of configuration with whole keys.
//
// runDir lies where the service's own does by default: on a tmpfs, where there
// is one. FIFOs are made there for each call.
func startServer(ctx context.Context, binary, dir, runDir, parent string, cgroups *cgroup.Host, clients int, settings []string) (_ *server, err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		return nil, err
	}
	file := filepath.Join(dir, "config.toml")
	lines := append([]string{
		`http_addr = "127.0.0.1:0"`,
		fmt.Sprintf("run_dir = %q", runDir),
		fmt.Sprintf("data_dir = %q", filepath.Join(dir, "data")),
		fmt.Sprintf("sandbox.cgroup_parent = %q", parent),
	}, settings...)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	s := &server{parent: parent, cgroups: cgroups, done: make(chan struct{}), requests: bearer()}
	s.cmd = exec.Command(binary, "serve", "--config", file) //nolint:noctx // it is stopped by its own signal
	s.cmd.Dir = dir
	s.cmd.Env = append(os.Environ(), "SANDBOX_MCP_TOKEN="+token)
	// Neither an interrupt at the terminal nor our own death decides for it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	s.pid = s.cmd.Process.Pid
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	url := make(chan string, 1)
	go s.follow(stderr, url)
	select {
	case s.url = <-url:
	case <-s.done:
		return nil, fmt.Errorf("the server ended at once:\n%s", s.log.String())
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := s.awaitHealthy(ctx); err != nil {
		return nil, err
	}
	for range clients {
		// A transport of its own is a connection of its own.
		transport := &mcp.StreamableClientTransport{Endpoint: s.url, HTTPClient: bearer(), DisableStandaloneSSE: true}
		client, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, transport, nil)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		s.clients = append(s.clients, client)
	}
	return s, nil
}

// follow keeps the log and finds the address in it.
func (s *server) follow(stderr io.Reader, url chan<- string) {
	defer close(s.done)
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if s.log.Len() < 1<<20 { // enough to see what is wrong
			s.log.Write(append(lines.Bytes(), '\n'))
		}
		if _, rest, ok := strings.Cut(lines.Text(), " url="); ok && strings.Contains(lines.Text(), "msg=serving") {
			url <- strings.Fields(rest)[0]
		}
	}
	_, _ = io.Copy(io.Discard, stderr)
	_ = s.cmd.Wait()
}

func (s *server) awaitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the server does not become ready"))
	defer cancel()
	for {
		body, status, err := s.get(ctx, "/healthz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), body)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) get(ctx context.Context, path string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.url, "/mcp")+path, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := s.requests.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return body, resp.StatusCode, err
}

// metric returns one sample of /metrics, named as there, labels included.
func (s *server) metric(ctx context.Context, name string) (float64, error) {
	body, _, err := s.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// prepared returns how many sandboxes of a language wait.
func (s *server) prepared(ctx context.Context, lang string) (int, error) {
	n, err := s.metric(ctx, fmt.Sprintf("code_execution_sandbox_prepared_sandboxes{language=%q}", lang))
	return int(n), err
}

// pooled is how many sandboxes a full pool holds.
func (s *server) pooled() (n int) {
	for _, of := range s.pool {
		n += of
	}
	return n
}

// settle waits until the pool is full and everything used is gone. The cgroups
// are looked at first, since that costs the server nothing.
func (s *server) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the server does not come to rest"))
	defer cancel()
	for {
		names, err := s.cgroups.Children(s.parent)
		if err != nil {
			return err
		}
		if len(names) == s.pooled() {
			full := true
			for lang, of := range s.pool {
				n, err := s.prepared(ctx, lang)
				if err != nil {
					return err
				}
				full = full && n == of
			}
			if full {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// call runs a program over MCP and returns what it printed. The number is the
// client's.
func (s *server) call(ctx context.Context, client int, lang, code string) (string, error) {
	text, err := s.answer(ctx, client, lang, code)
	if err != nil {
		return "", err
	}
	out, ok := strings.CutPrefix(text, "exit_code: 0\nstdout:\n")
	if !ok {
		return "", fmt.Errorf("the answer is %q", clip(text))
	}
	return out, nil
}

// answer returns the text that a model would see.
func (s *server) answer(ctx context.Context, client int, lang, code string) (string, error) {
	res, err := s.clients[client].CallTool(ctx, &mcp.CallToolParams{
		Name: "execute_code", Arguments: map[string]any{"language": lang, "code": code, "timeout_seconds": 60},
	})
	if err != nil {
		return "", err
	}
	if len(res.Content) != 1 {
		return "", fmt.Errorf("%d blocks of content", len(res.Content))
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok || res.IsError {
		return "", fmt.Errorf("the answer is an error: %+v", res.Content[0])
	}
	return text.Text, nil
}

// stop ends the server; it must end by itself and without error.
func (s *server) stop() error {
	for _, c := range s.clients {
		_ = c.Close() // the server may be gone
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the server ended with exit code %d:\n%s", code, s.log.String())
	}
	return nil
}

// bearer returns a client with connections of its own that sends the token.
func bearer() *http.Client {
	return &http.Client{Transport: withToken{&http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}}}
}

type withToken struct{ base *http.Transport }

func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return t.base.RoundTrip(r)
}

// clip keeps an error readable.
func clip(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return s
}

// together calls do from n goroutines at once, each with its number, and waits.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}
