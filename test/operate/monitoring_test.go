package operate

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"code-execution-sandbox/test/harness"
)

// The rules are valid, and each alert comes when it should and not before.
func TestAlertRules(t *testing.T) {
	dir := filepath.Join(repository, "systemd/monitoring")
	for _, args := range [][]string{
		{"check", "rules", dir + "/alerts.yml"},
		{"check", "config", "--syntax-only", dir + "/prometheus.yml"},
		{"test", "rules", dir + "/alerts_test.yml"},
	} {
		if out, err := output(t, "promtool", args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	// No alert without a test of its own.
	rules, tests := adapted(t, "systemd/monitoring/alerts.yml"), adapted(t, "systemd/monitoring/alerts_test.yml")
	found := alertName.FindAllStringSubmatch(rules, -1)
	if len(found) == 0 {
		t.Error("no alert was found")
	}
	for _, m := range found {
		if !strings.Contains(tests, m[1]+`\"`) {
			t.Errorf("%s has no test", m[1])
		}
	}
	if got := strings.Count(rules, "remedy:"); got != len(found) {
		t.Errorf("%d alerts have %d remedies", len(found), got)
	}
}

var alertName = regexp.MustCompile(`alert: (\w+)`)

// panel is what of a panel the tests look at.
type panel struct {
	Title, Type string
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat string }
}

// panels are those of the dashboard that have queries.
func panels(t *testing.T) []panel {
	t.Helper()
	raw := adapted(t, "systemd/monitoring/dashboard.json")
	var schema dashboard.Dashboard //nolint:staticcheck // what a file for Grafana 8 to 12 holds; its successor needs 12
	for _, err := range []error{schema.UnmarshalJSONStrict([]byte(raw)), schema.Validate()} {
		// An empty list of errors is an error, too.
		if list := (cog.BuildErrors)(nil); err != nil && (!errors.As(err, &list) || len(list) > 0) {
			t.Errorf("the dashboard breaks Grafana's schema: %v", err)
		}
	}
	var file struct{ Panels []panel }
	if err := json.Unmarshal([]byte(raw), &file); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(file.Panels, func(p panel) bool { return p.Type == "row" })
}

// prometheus is a real Prometheus that scrapes a server.
type prometheus struct {
	t    *testing.T
	base string
}

// scrape starts a Prometheus with the repository's rules, without the times for
// which an alert waits: those are promtool's to play through.
func scrape(t *testing.T, target string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), harness.Token)
	write(t, filepath.Join(dir, "alerts.yml"), regexp.MustCompile(`(?m)^ *for: .*\n`).ReplaceAllString(adapted(t, "systemd/monitoring/alerts.yml"), ""))
	write(t, filepath.Join(dir, "prometheus.yml"), adapted(t, "systemd/monitoring/prometheus.yml",
		"15s", "1s", "/etc/prometheus/code-execution-sandbox.token", filepath.Join(dir, "token"), "localhost:8788", target))
	address := freeAddress(t)
	launch(t, exec.Command(program(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"), //nolint:gosec // the tests' own
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address))
	p := &prometheus{t, "http://" + address}
	eventually(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(p.base + "/-/ready")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return p
}

// series is one line of a graph.
type series struct {
	Metric map[string]string
	Values []sample
	Value  sample
}

// sample is a time and a value, as Prometheus writes them.
type sample struct{ at, value float64 }

func (s *sample) UnmarshalJSON(raw []byte) error {
	var pair [2]any
	if err := json.Unmarshal(raw, &pair); err != nil {
		return err
	}
	at, _ := pair[0].(float64)
	text, _ := pair[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	*s = sample{at, value}
	return err
}

// ask queries with the variables of the dashboard set.
func (p *prometheus) ask(path, expr string, more url.Values) []series {
	p.t.Helper()
	expr = strings.NewReplacer("$job", "code-execution-sandbox", "$instance", ".*", "$__rate_interval", "15s").Replace(expr)
	query := url.Values{"query": {expr}}
	maps.Copy(query, more)
	resp, err := http.Get(p.base + path + "?" + query.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct{ Result []series }
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil || answer.Status != "success" {
		p.t.Fatalf("query %s: %v %s", expr, err, body)
	}
	return answer.Data.Result
}

func (p *prometheus) now(expr string) []series { return p.ask("/api/v1/query", expr, nil) }

// firing reports whether an alert is up, with these labels.
func (p *prometheus) firing(name, labels string) bool {
	return len(p.now(`ALERTS{alertname="CodeExecutionSandbox`+name+`",alertstate="firing"`+labels+`}`)) > 0
}

// load calls the server from some clients until the context ends.
func load(ctx context.Context, t *testing.T, s *harness.Server) (wait func()) {
	t.Helper()
	programs := []map[string]any{
		{"language": "python", "code": "print(sum(range(10**5)))"},
		{"language": "bash", "code": "echo hello; exit 3"},
		{"language": "python", "code": "print('x' * 200000)"},
		{"language": "python", "code": "import time; time.sleep(0.3)"},
		{"language": "bash", "code": "sleep 9", "timeout_seconds": 1},
		{"language": "python", "code": "x = [bytearray(b'x' * (1 << 20)) for _ in range(1024)]"},
		{"language": "cobol", "code": "DISPLAY 1"},
	}
	var wg sync.WaitGroup
	for client := range 4 {
		session := s.Connect(t)
		wg.Go(func() {
			for i := client; ctx.Err() == nil; i++ {
				res, err := harness.Call(ctx, session, programs[i%len(programs)]) // the metrics tell the rest
				if err == nil && res.IsError && strings.Contains(harness.Text(t, res), "busy") {
					time.Sleep(200 * time.Millisecond) // as a client does
				}
			}
		})
	}
	return wg.Wait
}

// A real Prometheus sees a server under load, each panel of the dashboard shows
// something, and the alerts come when the server is broken.
func TestMonitoring(t *testing.T) {
	all := panels(t)
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nmax_concurrent = 2\nmemory_limit = \"256m\"\n[pool]\npython = 2\nbash = 1\n[queue]\nmax_waiting = 1\n")

	metrics := get(t, s.Base()+"/metrics")
	lint := exec.CommandContext(t.Context(), program(t, "promtool"), "check", "metrics") //nolint:gosec // the tests' own
	lint.Stdin = strings.NewReader(metrics)
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	p := scrape(t, strings.TrimPrefix(s.Base(), "http://"))
	begin := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.Log())
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	wait := load(ctx, t, s)
	eventually(t, "graphs over some time", func() bool {
		return time.Since(begin) > 20*time.Second && len(p.now(`code_execution_sandbox_kills_total{reason="time_limit"} > 0`)) > 0
	})
	for _, panel := range all {
		for _, target := range panel.Targets {
			eventually(t, panel.Title+": data of "+target.Expr, func() bool {
				return slices.ContainsFunc(p.now(target.Expr), func(s series) bool { return !math.IsNaN(s.Value.value) })
			})
		}
	}
	if len(p.now(`code_execution_sandbox_pool_requests_total{result="miss"} > 0`)) == 0 {
		t.Error("two programs at once, in a row, have never found the pool dry")
	}
	eventually(t, "calls are turned away", func() bool { return p.firing("Busy", "") })
	for _, name := range []string{"Down", "NotReady", "CallsFail", "Quarantine", "Leftovers", "SelfTestOld", "Descriptors"} {
		if p.firing(name, "") {
			t.Errorf("the alert %s is up on a server that is well", name)
		}
	}
	image := filepath.Join(repository, "bin", "dashboard.png")
	render(t, p, all, begin, image)
	t.Logf("the dashboard under load is drawn in %s", filepath.Base(image))
	stop()
	wait()

	daemon := harness.Daemon().PID()
	if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(daemon, syscall.SIGCONT) }()
	eventually(t, "an alert for containerd", func() bool { return p.firing("NotReady", `,check="containerd"`) })
	if err := syscall.Kill(daemon, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.AwaitHealthy(t)
	eventually(t, "the end of the alert", func() bool { return !p.firing("NotReady", "") })
	s.Stop(t)
	eventually(t, "an alert for the server", func() bool { return p.firing("Down", "") })
}

// The health is told at once, however much there is to do: load balancers and
// supervisors act on silence.
func TestHealthUnderLoad(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nmax_concurrent = 2\n[pool]\npython = 0\nbash = 0\n")
	ctx, stop := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 8 {
		session := s.Connect(t)
		calls.Go(func() {
			_, _ = harness.Call(ctx, session, map[string]any{"language": "bash", "code": "while :; do :; done", "timeout_seconds": 60})
		})
	}
	defer calls.Wait()
	defer stop()
	full := func() bool {
		return s.Metric(t, "code_execution_sandbox_slots_taken") == "2" && s.Metric(t, "code_execution_sandbox_queue_length") == "6"
	}
	eventually(t, "every slot is taken and calls wait", full)
	var took []time.Duration
	for _, query := range []string{"", "?live"} {
		for range 50 {
			begin := time.Now()
			get(t, s.Base()+"/healthz"+query)
			took = append(took, time.Since(begin))
		}
	}
	if !full() {
		t.Error("the load ended before the health was told")
	}
	slices.Sort(took)
	t.Logf("/healthz with all slots busy: median %s, slowest %s", millis(took[len(took)/2]), millis(took[len(took)-1]))

	daemon := harness.Daemon().PID()
	if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(daemon, syscall.SIGCONT) }()
	eventually(t, "the health knows that containerd is away", func() bool {
		return strings.Contains(ask(t, s.Base()+"/healthz", http.StatusServiceUnavailable, http.StatusOK), `"containerd"`)
	})
	begin := time.Now()
	ask(t, s.Base()+"/healthz?live", http.StatusOK)
	t.Logf("/healthz?live with containerd stopped: %s", millis(time.Since(begin)))
}

// get asks for something that must be there.
func get(t *testing.T, address string) string {
	t.Helper()
	return ask(t, address, http.StatusOK)
}

func ask(t *testing.T, address string, allowed ...int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := harness.HTTPClient().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !slices.Contains(allowed, resp.StatusCode) {
		t.Fatalf("%s: %d %v\n%s", address, resp.StatusCode, err, body)
	}
	return string(body)
}
