package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/test/harness"
)

// member is one of several servers, which comes back at the same address.
type member struct {
	address string
	opts    runner.Options
	config  string
	*process
}

func newMember(t *testing.T) *member {
	t.Helper()
	m := &member{address: freeAddress(t), opts: harness.Options(t)}
	m.config = harness.Config(t, m.opts, "shutdown_delay_seconds = 3\n[pool]\npython = 1\nbash = 1\n[queue]\nmax_waiting = 100\n[sandbox]\nmax_concurrent = 2\n")
	raw, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(raw), "127.0.0.1:0", m.address, 1)
	write(t, m.config, strings.Replace(text, "shutdown_grace_seconds = 2", "shutdown_grace_seconds = 60", 1))
	return m
}

func (m *member) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(harness.Binary(), "serve", "--config", m.config)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SANDBOX_MCP_TOKEN="+harness.Token)
	m.process = launch(t, cmd)
	eventually(t, "the server is ready", func() bool { return status(m.address) == http.StatusOK })
}

// status is what /healthz says, 0 for no answer.
func status(address string) int {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// tally counts the calls of some clients by phase and by how they ended.
type tally struct {
	mu    sync.Mutex
	phase string                    // guarded by mu
	ended map[string]map[string]int // guarded by mu; by phase and end
	runs  map[string]int            // guarded by mu; calls that have not ended, by phase
}

func (c *tally) begin(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = phase
}

// start returns the phase that a call which begins now counts for.
func (c *tally) start() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[c.phase]++
	return c.phase
}

// over tells that a call has ended, however it did.
func (c *tally) over(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[phase]--
}

// running is how many calls of a phase have not ended.
func (c *tally) running(phase string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[phase]
}

func (c *tally) add(phase, end string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended[phase] == nil {
		c.ended[phase] = map[string]int{}
	}
	c.ended[phase][end]++
}

func (c *tally) count(phase string) (good, bad int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for end, n := range c.ended[phase] {
		if end == "answered" {
			good += n
		} else {
			bad += n
		}
	}
	return good, bad
}

// client calls until ctx ends. A call counts for the phase it began in.
func (c *tally) client(ctx context.Context, url string, number int) {
	connect := func() (*mcp.ClientSession, error) {
		client := mcp.NewClient(&mcp.Implementation{Name: "operate", Version: "1"}, nil)
		return client.Connect(ctx, &mcp.StreamableClientTransport{
			Endpoint: url, DisableStandaloneSSE: true, MaxRetries: -1, HTTPClient: harness.HTTPClient(),
		}, nil)
	}
	var session *mcp.ClientSession
	one := func(i int) {
		phase := c.start()
		defer c.over(phase)
		if session == nil {
			var err error
			if session, err = connect(); err != nil {
				if ctx.Err() == nil {
					c.add(phase, "no session: "+err.Error())
				}
				session = nil
				return
			}
		}
		want := fmt.Sprintf("call %d of client %d", i, number)
		// Some are longer than the 5 s after which a silent call says something,
		// and some larger than a proxy's buffer.
		code := fmt.Sprintf("sleep 0.1; echo %s # %s", want, strings.Repeat("x", i%3*20_000))
		if i%10 == 9 {
			code = "sleep 6; echo " + want
		}
		res, err := harness.Call(ctx, session, map[string]any{"language": "bash", "code": code, "timeout_seconds": 30})
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.add(phase, "error: "+cause(err))
			_ = session.Close()
			session = nil
		case !strings.Contains(res.Content[0].(*mcp.TextContent).Text, want):
			c.add(phase, "wrong: "+res.Content[0].(*mcp.TextContent).Text)
		default:
			c.add(phase, "answered")
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		one(i)
	}
	if session != nil {
		_ = session.Close()
	}
}

// cause is an error without what differs from call to call.
func cause(err error) string {
	if operation := (*net.OpError)(nil); errors.As(err, &operation) {
		return operation.Err.Error()
	}
	text := err.Error()
	return text[max(0, len(text)-60):]
}

// Two servers behind a real proxy, from the configuration in the repository: one
// is restarted under load, and no call notices; one is killed, and none fails but
// those that ran on it.
func TestBalancers(t *testing.T) {
	for name, proxy := range map[string]func(t *testing.T, listen string, a, b *member) *exec.Cmd{
		"haproxy": func(t *testing.T, listen string, a, b *member) *exec.Cmd {
			config := filepath.Join(t.TempDir(), "haproxy.cfg")
			write(t, config, adapted(t, "systemd/cluster/haproxy.cfg",
				"bind :8787", "bind "+listen, "192.0.2.1:8788", a.address, "192.0.2.2:8788", b.address))
			if out, err := output(t, "haproxy", "-c", "-f", config); err != nil {
				t.Fatalf("the configuration is wrong: %v\n%s", err, out)
			}
			return exec.Command(program(t, "haproxy"), "-W", "-db", "-f", config) //nolint:gosec // the tests' own
		},
		"nginx": func(t *testing.T, listen string, a, b *member) *exec.Cmd {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "cluster.conf"), adapted(t, "systemd/cluster/nginx.conf",
				"listen 8787", "listen "+listen, "192.0.2.1:8788", a.address, "192.0.2.2:8788", b.address))
			// What the distribution's own nginx.conf says.
			temp := ""
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				temp += kind + "_temp_path " + dir + "/" + kind + ";\n"
			}
			config := filepath.Join(dir, "nginx.conf")
			write(t, config, "user root;\npid "+dir+"/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"+temp+"include "+dir+"/cluster.conf;\n}\n")
			if out, err := output(t, "nginx", "-t", "-c", config, "-e", "stderr"); err != nil {
				t.Fatalf("the configuration is wrong: %v\n%s", err, out)
			}
			return exec.Command(program(t, "nginx"), "-c", config, "-e", "stderr", "-g", "daemon off;") //nolint:gosec // the tests' own
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newMember(t), newMember(t)
			a.start(t)
			b.start(t)
			listen := freeAddress(t)
			launch(t, proxy(t, listen, a, b))
			eventually(t, "the proxy answers", func() bool { return status(listen) == http.StatusOK })
			ask(t, "http://"+listen+"/metrics", http.StatusNotFound)

			calls := &tally{ended: map[string]map[string]int{}, runs: map[string]int{}}
			ctx, stop := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			const width = 6
			for number := range width {
				clients.Go(func() { calls.client(ctx, "http://"+listen+"/mcp", number) })
			}
			defer clients.Wait()
			defer stop()
			phase := func(name string, act func()) {
				calls.begin(name)
				act()
				eventually(t, "calls: "+name, func() bool { good, _ := calls.count(name); return good >= 2*width })
			}
			phase("both run", func() {})
			phase("one is restarted", func() {
				a.signal(syscall.SIGTERM)
				<-a.done
				if code := a.cmd.ProcessState.ExitCode(); code != 0 {
					t.Errorf("it ended with %d", code)
				}
			})
			phase("it is back", func() {
				a.start(t)
				// Or the other would be killed while nobody else is asked: a proxy
				// without checks of its own takes 2 s to come back to a server.
				eventually(t, "a call on the server that is back", func() bool { return strings.Contains(a.String(), "call ended") })
				// Or the kill would end one of them.
				eventually(t, "the end of all calls that saw the restart", func() bool { return calls.running("one is restarted") == 0 })
			})
			phase("the other is killed", func() {
				b.signal(syscall.SIGKILL)
				<-b.done
			})
			phase("it is back, too", func() { b.start(t) })
			stop()
			clients.Wait()

			calls.mu.Lock()
			for phase, ends := range calls.ended {
				for _, end := range slices.Sorted(maps.Keys(ends)) {
					t.Logf("%-20s %4d %s", phase, ends[end], end)
				}
			}
			calls.mu.Unlock()
			for phase := range calls.ended {
				_, bad := calls.count(phase)
				// A call that was running on the killed server began in the phase
				// before, and each client has one.
				allowed := 0
				if phase == "it is back" || phase == "the other is killed" {
					allowed = width
				}
				if bad > allowed {
					t.Errorf("%s: %d calls failed, at most %d may", phase, bad, allowed)
				}
			}
			for _, m := range []*member{a, b} {
				m.signal(syscall.SIGTERM)
			}
			<-a.done
			<-b.done
			for _, m := range []*member{a, b} {
				for _, left := range harness.Leftovers(t, m.opts) {
					t.Error("left behind:", left)
				}
			}
		})
	}
}
