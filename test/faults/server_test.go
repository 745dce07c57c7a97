package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/test/harness"
)

const withoutPool = "[pool]\npython = 0\nbash = 0\n"

// body is a tools/call as one JSON-RPC request.
func body(t *testing.T, code string, seconds int) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": "execute_code", "arguments": map[string]any{
			"language": "bash", "code": code, "timeout_seconds": seconds,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// request is an HTTP request with body, as a client of an older protocol sends
// it.
func request(ctx context.Context, t *testing.T, s *harness.Server, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+harness.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-06-18")
	return req
}

// call is one call on a connection of its own. It returns the whole answer.
func call(ctx context.Context, t *testing.T, s *harness.Server, code string, seconds int) (string, error) {
	t.Helper()
	req := request(ctx, t, s, bytes.NewReader(body(t, code, seconds)))
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(raw)), err
}

// gauge reads a metric, -1 while there is none.
func gauge(t *testing.T, s *harness.Server, name string) float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Base()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := harness.HTTPClient().Do(req)
	if err != nil {
		return -1
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

const running = "code_execution_sandbox_slots_taken"

// prepared counts the sandboxes that wait for a program.
func prepared(t *testing.T, s *harness.Server) int {
	t.Helper()
	const name = "code_execution_sandbox_prepared_sandboxes"
	return int(gauge(t, s, name+`{language="bash"}`) + gauge(t, s, name+`{language="python"}`))
}

func awaitRunning(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprint(n, " programs run"), func() bool { return gauge(t, s, running) == float64(n) })
}

func health(t *testing.T, s *harness.Server) string {
	t.Helper()
	resp, err := http.Get(s.Base() + "/healthz")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

// A server whose containerd is not there lives, says so, and waits for it.
func TestF4ContainerdIsDownAtTheStart(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(filepath.Dir(harness.Binary()), "d")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		t.Fatal(err)
	}
	do := daemon.Options{Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "run")}
	opts := harness.Options(t)
	opts.Address, opts.Namespace = filepath.Join(do.State, "containerd.sock"), namespaceOf(do)
	s, log, end := launch(t, harness.Config(t, opts, withoutPool))
	var reader sync.WaitGroup
	reader.Go(func() {
		for log.Scan() {
			t.Log(log.Text())
		}
	})
	eventually(t, 20*time.Second, "the health tells of it", func() bool { return strings.Contains(health(t, s), `"check":"containerd"`) })
	if answer, err := call(t.Context(), t, s, "echo", 1); err != nil || !strings.Contains(answer, "containerd") {
		t.Errorf("a call: %s, %v", answer, err)
	}
	own(t, do)
	s.AwaitHealthy(t)
	if answer, err := call(t.Context(), t, s, "echo back", 5); err != nil || !strings.Contains(answer, "back") {
		t.Errorf("a call: %s, %v", answer, err)
	}
	signal(t, syscall.SIGTERM, s.PID)
	if err := end(); err != nil {
		t.Error("at SIGTERM:", err)
	}
	reader.Wait()
}

// launch starts a server of which the test reads the log itself. It is killed
// when the test ends; end waits for its end.
func launch(t *testing.T, config string) (s *harness.Server, log *bufio.Scanner, end func() error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// As small as a pipe can be.
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(harness.Binary(), "serve", "--config", config)
	cmd.Dir, cmd.Env, cmd.Stderr = t.TempDir(), append(os.Environ(), "SANDBOX_MCP_TOKEN="+harness.Token), w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	end = sync.OnceValue(cmd.Wait)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = end()
		_ = r.Close()
	})
	s, log = &harness.Server{PID: cmd.Process.Pid}, bufio.NewScanner(r)
	for s.URL == "" && log.Scan() {
		if _, rest, ok := strings.Cut(log.Text(), " url="); ok {
			s.URL = strings.Fields(rest)[0]
		}
	}
	return s, log, end
}

// The client goes away: its sandbox is gone soon after.
func TestF14ClientGoesAway(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Serve(t, opts, withoutPool)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = call(ctx, t, s, "sleep 60", 60)
	}()
	eventually(t, 30*time.Second, "the program runs", func() bool { return len(harness.Asleep(t, opts)) == 1 })
	cancel(errors.New("gone"))
	<-done
	// 2 s is the promise; what removes the rest may have to wait for a processor.
	eventually(t, 2*time.Second, "the program is dead", func() bool { return len(harness.Asleep(t, opts)) == 0 })
	eventually(t, 30*time.Second, "the sandbox is gone", func() bool { return len(sandboxes(t, opts)) == 0 })
	eventually(t, 5*time.Second, "the call is told of", func() bool { return strings.Contains(s.Log(), "outcome=canceled") })
}

// The client stops reading: neither slot nor sandbox waits for it.
func TestF15ClientStopsReading(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Serve(t, opts, withoutPool+"[result]\nmax_stdout_chars = 1000000\nstructured = true\n")
	for range 8 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.Base(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		if err := request(t.Context(), t, s, bytes.NewReader(body(t, "head -c 900000 /dev/zero | tr '\\0' x", 10))).Write(conn); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 60*time.Second, "the calls end", func() bool { return strings.Count(s.Log(), "outcome=exited") == 8 })
	eventually(t, 30*time.Second, "slots and sandboxes are free", func() bool { return gauge(t, s, running) == 0 && len(sandboxes(t, opts)) == 0 })
	if answer, err := call(t.Context(), t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
		t.Errorf("another client: %s, %v", answer, err)
	}
}

// SIGTERM: what ends within the grace is answered as ever, the rest is killed
// and answered, nothing is left, and the exit code is 0 (Stop looks at it).
func TestF16Termination(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Serve(t, opts, "[pool]\npython = 1\nbash = 1\n")
	answers := map[string]chan string{}
	// The short one last: the grace is 2 s from the moment that it sleeps.
	for n, code := range []string{"echo begun; sleep 50", "echo begun; exec sleep 55", "echo begun; sleep 1; echo ended"} {
		answers[code] = make(chan string, 1)
		go func(out chan<- string) {
			answer, err := call(t.Context(), t, s, code, 60)
			out <- fmt.Sprint(answer, err)
		}(answers[code])
		eventually(t, 30*time.Second, "the program runs", func() bool { return len(harness.Asleep(t, opts)) == n+1 })
	}
	within(t, 20*time.Second, func() { s.Stop(t) })
	for code, answer := range answers {
		want := "begun"
		if strings.Contains(code, "ended") {
			want = "begun\\nended"
		}
		if got := <-answer; !strings.Contains(got, want) {
			t.Errorf("%q is answered %s", code, got)
		}
	}
}

// SIGTERM before the first proof is through: the log blames nobody for its end.
func TestF16TerminationAtTheStart(t *testing.T) {
	s, log, end := launch(t, harness.Config(t, harness.Options(t), withoutPool))
	signal(t, syscall.SIGTERM, s.PID)
	lines := 0
	for ; log.Scan(); lines++ {
		if strings.Contains(log.Text(), "level=WARN") || strings.Contains(log.Text(), "level=ERROR") {
			t.Error(log.Text())
		}
	}
	if err := end(); err != nil || lines == 0 {
		t.Errorf("ended with %v after %d lines", err, lines)
	}
}

// The server is killed at random moments of its start, its calls and its pool.
// Whatever it left, the next one removes before it serves.
func TestF17KilledServer(t *testing.T) {
	rounds := 12
	if v := os.Getenv("FAULT_KILLS"); v != "" {
		var err error
		if rounds, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	opts := harness.Options(t)
	leftBehind := 0
	for range rounds {
		s := harness.Start(t, opts, "[pool]\npython = 2\nbash = 2\n")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = call(ctx, t, s, []string{"echo", "sleep 5", "yes", "kill -9 $$"}[rand.IntN(4)], 1)
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(2500)) * time.Millisecond)
		s.Kill()
		cancel(errors.New("the server is dead"))
		wg.Wait()
		leftBehind += len(harness.Leftovers(t, opts))
	}
	t.Logf("%d kills left %d things", rounds, leftBehind)
	if leftBehind == 0 {
		t.Error("nothing was left to sweep: this proves nothing")
	}
	s := harness.Serve(t, opts, withoutPool) // looks for leftovers when it has ended
	// Ready means swept.
	for _, left := range harness.Leftovers(t, opts) {
		if !strings.HasPrefix(left, harness.InRunDir) && len(shims(t, opts)) > 1 {
			t.Error("after the sweep:", left)
		}
	}
	if answer, err := call(t.Context(), t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
		t.Errorf("afterwards: %s, %v", answer, err)
	}
}

// A program whose server is killed has nobody who would end it at its limit: it
// ends at once, and so does what is prepared, before any other server comes.
func TestF17ProgramsEndWithTheirServer(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Start(t, opts, "[pool]\npython = 1\nbash = 2\n")
	s.AwaitHealthy(t)
	// Deaf, without output, and with processes that have left it.
	go func() {
		_, _ = call(t.Context(), t, s, "exec 3<>/dev/stdin 4<>/dev/stdout 5<>/dev/stderr; trap '' HUP TERM PIPE; setsid sleep 300 & while :; do :; done", 60)
	}()
	awaitRunning(t, s, 1)
	eventually(t, 30*time.Second, "the pool fills", func() bool { return prepared(t, s) == 3 })
	if n := living(t, opts); n < 8 {
		t.Fatalf("%d processes in 4 sandboxes", n)
	}
	s.Kill()
	eventually(t, 10*time.Second, "every process has ended", func() bool { return living(t, opts) == 0 })
	harness.Serve(t, opts, withoutPool) // removes the rest
}

// The launcher tells of the end and stays until the server has time for what
// comes after it; not longer than the server.
func TestF17LaunchersEndWithTheirServer(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Start(t, opts, withoutPool)
	s.AwaitHealthy(t)
	go func() { _, _ = call(t.Context(), t, s, "sleep 1 & wait", 60) }()
	eventually(t, 30*time.Second, "the program runs", func() bool { return len(harness.Asleep(t, opts)) == 1 })
	signal(t, syscall.SIGSTOP, s.PID)
	eventually(t, 30*time.Second, "the program has ended", func() bool { return living(t, opts) <= 1 })
	time.Sleep(200 * time.Millisecond)
	if n := living(t, opts); n != 1 {
		t.Errorf("%d processes after the program, want the launcher", n)
	}
	s.Kill()
	eventually(t, 10*time.Second, "the launcher has ended", func() bool { return living(t, opts) == 0 })
	harness.Serve(t, opts, withoutPool) // removes the rest
}

// living counts the processes in all sandboxes.
func living(t *testing.T, opts runner.Options) (n int) {
	t.Helper()
	groups, err := opts.Cgroups.Children(opts.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range groups {
		pids, err := opts.Cgroups.Group(filepath.Join(opts.CgroupParent, id)).Processes()
		if err != nil {
			t.Fatal(err)
		}
		n += len(pids)
	}
	return n
}

// Two servers share everything but their ports; one is killed, the other
// clears up and never notices.
func TestF18TwoServers(t *testing.T) {
	opts := harness.Options(t)
	a := harness.Serve(t, opts, "[pool]\npython = 1\nbash = 1\n")
	b := harness.Start(t, opts, "[pool]\npython = 1\nbash = 1\n")
	b.AwaitHealthy(t)
	eventually(t, 30*time.Second, "the pools fill", func() bool { return prepared(t, a) == 2 && prepared(t, b) == 2 })
	ownIDs(t, opts, 4)
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	var served atomic.Int32
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				answer, err := call(ctx, t, a, "echo fine", 10)
				if ctx.Err() == nil && (err != nil || !strings.Contains(answer, "fine")) {
					t.Errorf("a call on the one that lives: %s, %v", answer, err)
					return
				}
				served.Add(1)
			}
		})
	}
	go func() { _, _ = call(t.Context(), t, b, "sleep 60", 60) }()
	awaitRunning(t, b, 1)
	b.Kill()
	// The janitor of the one looks every 30 s.
	removed := regexp.MustCompile(`swept what a dead server left.* removed.containers=[1-9]`)
	eventually(t, 90*time.Second, "the other's leavings are removed", func() bool { return removed.MatchString(a.Log()) })
	cancel(errors.New("enough"))
	wg.Wait()
	t.Log(served.Load(), "calls meanwhile")
}

// The server is stopped while a program runs, and goes on.
func TestF23ServerPauses(t *testing.T) {
	for _, p := range []struct {
		name, code string
		limit      int // seconds
		pause      time.Duration
	}{
		{"in a flood", "timeout 4 yes | wc -c >&2; head -c 30M /dev/zero; echo end >&2", 20, 3 * time.Second},
		// The program has ended within its limit, though the server sees it after.
		{"past the limit", "sleep 2; echo end", 4, 6 * time.Second},
	} {
		t.Run(p.name, func(t *testing.T) {
			s := harness.Serve(t, harness.Options(t), withoutPool)
			out := make(chan string, 1)
			go func() {
				answer, err := call(t.Context(), t, s, p.code, p.limit)
				out <- fmt.Sprint(answer, err)
			}()
			awaitRunning(t, s, 1)
			signal(t, syscall.SIGSTOP, s.PID)
			time.Sleep(p.pause)
			signal(t, syscall.SIGCONT, s.PID)
			if answer := <-out; !strings.Contains(answer, "exit_code: 0") || !strings.Contains(answer, "end") {
				t.Errorf("%.500s", answer)
			}
		})
	}
}

// Connections that say nothing, or a byte now and then, keep nobody out.
func TestF26Slowloris(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), withoutPool)
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + harness.Token + "\r\n"
	for i := range 300 { // more than may be open
		wg.Go(func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.Base(), "http://"))
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			text := []string{"", head, head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"}[i%3]
			_, _ = conn.Write([]byte(text))
			for ctx.Err() == nil {
				if _, err := conn.Write([]byte(" ")); err != nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
		})
	}
	time.Sleep(time.Second)
	within(t, 60*time.Second, func() {
		if answer, err := call(t.Context(), t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
			t.Errorf("a call: %s, %v", answer, err)
		}
	})
	cancel(errors.New("enough"))
	wg.Wait()
}

// Bodies that are huge, deep, or nothing at all: refused, and the memory stays.
func TestF27Bodies(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), withoutPool)
	post := func(name string, body io.Reader, size int64) string {
		req := request(t.Context(), t, s, body)
		req.ContentLength, req.Close = size, true
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return name + ": " + err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		raw, _ := io.ReadAll(resp.Body)
		return fmt.Sprintf("%s: %d %.200s", name, resp.StatusCode, raw)
	}
	before := resident(t, s.PID)
	for name, text := range map[string]string{
		"deep":          strings.Repeat(`{"a":`, 500_000),
		"deep arrays":   strings.Repeat(`[`, 1_000_000),
		"deep argument": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":` + strings.Repeat(`{"a":`, 100_000) + `1` + strings.Repeat(`}`, 100_000) + `}}`,
		"batch":         "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 10_000), ",") + "]",
		"nothing":       "",
		"no JSON":       "hello",
		"NUL":           "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\x00\"}",
		"one number":    "1",
	} {
		answer := post(name, strings.NewReader(text), int64(len(text)))
		t.Logf("%.150s", answer)
		if strings.Contains(answer, ": 200") && !strings.Contains(answer, "error") && name != "batch" {
			t.Error("accepted:", answer)
		}
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if answer := post("huge", io.LimitReader(endless{}, 100<<20), -1); strings.Contains(answer, ": 200") {
				t.Error("accepted:", answer)
			}
		})
	}
	wg.Wait()
	if grown := resident(t, s.PID) - before; grown > harness.ServerMemory(256<<20) {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	if answer, err := call(t.Context(), t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
		t.Errorf("afterwards: %s, %v", answer, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func resident(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// open counts the descriptors of a process.
func open(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// 5000 calls at once: each is served or told that the server is busy.
func TestF30FiveThousandClients(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), withoutPool)
	before, opened := resident(t, s.PID), open(t, s.PID)
	var served, busy atomic.Int32
	var wg sync.WaitGroup
	most := int64(0)
	for range 5000 {
		wg.Go(func() {
			answer, err := call(t.Context(), t, s, "echo served", 10)
			switch {
			case err == nil && strings.Contains(answer, "exit_code: 0\\nstdout:\\nserved"):
				served.Add(1)
			case err == nil && strings.Contains(answer, "busy"):
				busy.Add(1)
			default:
				t.Errorf("%.300s, %v", answer, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for ended := false; !ended; {
		most = max(most, resident(t, s.PID))
		select {
		case <-done:
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Logf("%d served, %d told that the server is busy; memory %d MiB before, %d at most", served.Load(), busy.Load(), before>>20, most>>20)
	if served.Load() == 0 || busy.Load() == 0 {
		t.Error("one of both is missing")
	}
	eventually(t, 30*time.Second, "the descriptors are closed", func() bool { return open(t, s.PID) <= opened })
	if most-before > harness.ServerMemory(200<<20) {
		t.Errorf("the server grew by %d MiB", (most-before)>>20)
	}
	if answer, err := call(t.Context(), t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
		t.Errorf("afterwards: %s, %v", answer, err)
	}
}

// Connections that were used once and then stay silent keep nobody out.
func TestF26IdleConnections(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), withoutPool)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancelCause(t.Context())
	for range 300 { // more than may be open
		wg.Go(func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.Base(), "http://"))
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
			<-ctx.Done()
		})
	}
	time.Sleep(2 * time.Second)
	within(t, 20*time.Second, func() {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 19*time.Second, errors.New("kept out"))
		defer cancel()
		if answer, err := call(ctx, t, s, "echo ok", 5); err != nil || !strings.Contains(answer, "ok") {
			t.Errorf("a call: %s, %v", answer, err)
		}
	})
	cancel(errors.New("enough"))
	wg.Wait()
}

// Nobody reads the log: calls are answered all the same.
func TestF35LogIsStuck(t *testing.T) {
	opts := harness.Options(t)
	s, _, _ := launch(t, harness.Config(t, opts, withoutPool))
	s.AwaitHealthy(t)
	// From here on nobody reads. A line of 500 bytes per call: the pipe holds
	// eight of them.
	within(t, 5*time.Minute, func() {
		for range 40 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the log blocks the call"))
			answer, err := call(ctx, t, s, "echo ok", 5)
			cancel()
			if err != nil || !strings.Contains(answer, "ok") {
				t.Errorf("%s, %v", answer, err)
				return
			}
		}
	})
	signal(t, syscall.SIGKILL, s.PID)
	harness.Serve(t, opts, withoutPool) // clears up
}
