package harness

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/runner"
)

// Token is the bearer token of test servers.
const Token = "a-token-for-tests-only-0123456789"

// Server is the real binary serving on the tests' containerd.
type Server struct {
	// URL is the MCP endpoint.
	URL string
	// Options are those a runner needs to see what the server made.
	Options runner.Options
	// PID is the server's process.
	PID int

	cmd  *exec.Cmd
	dir  string
	done chan struct{}
	mu   sync.Mutex
	log  bytes.Buffer
}

// Config returns a configuration file in a new directory: opts say where
// everything is, extra is appended.
func Config(t testing.TB, opts runner.Options, extra string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "config.toml")
	text := fmt.Sprintf(`http_addr = "127.0.0.1:0"
run_dir = %q
shutdown_grace_seconds = 2
%s
`, opts.RunDir, extra)
	sandbox := fmt.Sprintf("cgroup_parent = %q", opts.CgroupParent)
	if !strings.Contains(extra, "\nimage = ") {
		sandbox += fmt.Sprintf("\nimage = %q", opts.ImageName)
	}
	// Keys of a table that extra opens stay in that table.
	for table, keys := range map[string]string{
		"containerd": fmt.Sprintf("address = %q\nnamespace = %q", opts.Address, opts.Namespace),
		"sandbox":    sandbox,
	} {
		head := "[" + table + "]\n"
		if !strings.Contains(text, head) {
			text += head
		}
		text = strings.Replace(text, head, head+keys+"\n", 1)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Serve starts the server with extra configuration and waits until it is
// ready. When the test ends it is stopped, and must have left nothing behind.
func Serve(t testing.TB, opts runner.Options, extra string) *Server {
	t.Helper()
	s := Start(t, opts, extra)
	s.AwaitHealthy(t)
	t.Cleanup(func() {
		s.Stop(t)
		for _, left := range Leftovers(t, opts) {
			t.Error("left behind:", left)
		}
	})
	return s
}

// Start starts the server and waits until it listens.
func Start(t testing.TB, opts runner.Options, extra string) *Server {
	t.Helper()
	s := &Server{Options: opts, dir: t.TempDir(), done: make(chan struct{})}
	s.cmd = exec.Command(env.binary, "serve", "--config", Config(t, opts, extra)) //nolint:noctx // it outlives contexts
	s.cmd.Dir = s.dir
	s.cmd.Env = append(os.Environ(), "SANDBOX_MCP_TOKEN="+Token)
	// A test that dies must not leave a server.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.PID = s.cmd.Process.Pid
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	url := make(chan string, 1)
	go s.follow(stderr, url)
	select {
	case s.URL = <-url:
	case <-s.done:
		t.Fatalf("the server ended at once:\n%s", s.Log())
	case <-time.After(30 * time.Second):
		t.Fatalf("the server does not serve:\n%s", s.Log())
	}
	return s
}

// endpoint finds the address in the log, whatever its format.
var endpoint = regexp.MustCompile(`http://[0-9.:]+/mcp`)

// follow keeps the log and finds the address in it.
func (s *Server) follow(stderr io.Reader, url chan<- string) {
	defer close(s.done)
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.log.Write(append(lines.Bytes(), '\n'))
		s.mu.Unlock()
		if strings.Contains(lines.Text(), "serving") {
			if found := endpoint.FindString(lines.Text()); found != "" {
				url <- found
			}
		}
	}
	_ = s.cmd.Wait()
}

// Log is what the server has written so far.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Base is the server's address without a path.
func (s *Server) Base() string { return strings.TrimSuffix(s.URL, "/mcp") }

// AwaitHealthy waits for /healthz to say ok.
func (s *Server) AwaitHealthy(t testing.TB) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get(s.Base() + "/healthz") //nolint:noctx // bounded by the loop
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if last = string(body); resp.StatusCode == http.StatusOK {
			return
		}
	}
	t.Fatalf("not healthy: %s\n%s", last, s.Log())
}

// Stop ends the server with SIGTERM; it must end by itself and without error.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		t.Fatalf("the server does not end:\n%s", s.Log())
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the server ended with exit code %d:\n%s", code, s.Log())
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// bearer adds the token to every request.
type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+Token)
	return http.DefaultTransport.RoundTrip(r)
}

// HTTPClient sends the token.
func HTTPClient() *http.Client { return &http.Client{Transport: bearer{}} }

// Connect opens a session of the go-sdk client.
func (s *Server) Connect(t testing.TB) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "harness", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: HTTPClient()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// Call calls the tool.
func Call(ctx context.Context, session *mcp.ClientSession, args map[string]any) (*mcp.CallToolResult, error) {
	return session.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: args})
}

// Text is the one block of a result.
func Text(t testing.TB, res *mcp.CallToolResult) string {
	t.Helper()
	if len(res.Content) != 1 {
		t.Fatalf("%d blocks of content", len(res.Content))
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content is %T", res.Content[0])
	}
	return text.Text
}

// Metric reads one of the server's metrics, by its name with its labels.
func (s *Server) Metric(t testing.TB, name string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Base()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := HTTPClient().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}
