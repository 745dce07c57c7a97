package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/test/harness"
)

// rows says which tests show each row of the list of what must be seen over the
// wire. The numbers are the list's, which leaves some out. What a row needs a
// real sandbox or a real client for is in this folder.
var rows = map[int]string{
	1:  "httpserver.TestRow1Health",
	2:  "httpserver.TestRow2NoToken",
	3:  "httpserver.TestRow3Tokens",
	4:  "httpserver.TestRow4Origin",
	5:  "httpserver.TestRow5HostOnLoopback httpserver.TestHosts",
	6:  "httpserver.TestRow6Methods",
	7:  "httpserver.TestRow7TooLarge",
	8:  "httpserver.TestRow8ContentType",
	9:  "httpserver.TestRow9Malformed",
	10: "httpserver.TestRow10Headers",
	11: "httpserver.TestRow11NotFound",
	12: "httpserver.TestRow12Initialize",
	13: "httpserver.TestRow13InitializedAndPing",
	14: "httpserver.TestRow14Sessions conformance.TestRows14And19Restart",
	16: "httpserver.TestRow16Discover",
	17: "httpserver.TestRow17Mismatches",
	18: "httpserver.TestRow18ResultType",
	19: "httpserver.TestRow19ToolsList conformance.TestRows14And19Restart conformance.TestInspector mcpserver.TestSchemaIsFlat mcpserver.TestTextsFit",
	20: "httpserver.TestRow16Discover mcpserver.TestTool conformance.TestRow20Agents",
	21: "httpserver.TestRow21UnknownTool conformance.TestTypeScriptSDKs",
	22: "conformance.TestRow22OfficialSuite",
	23: "httpserver.TestRow23And25BadArguments",
	25: "httpserver.TestRow23And25BadArguments",
	27: "conformance.TestRows27To33And35Results",
	28: "conformance.TestRows27To33And35Results",
	30: "conformance.TestRows27To33And35Results",
	31: "conformance.TestRow31Floods",
	32: "conformance.TestRows27To33And35Results",
	33: "conformance.TestRows27To33And35Results",
	34: "httpserver.TestRow34Structured conformance.TestRow34Structured conformance.TestRows27To33And35Results",
	35: "conformance.TestRows27To33And35Results",
	36: "httpserver.TestRow36Progress conformance.TestGoSDKAndMCPRemote conformance.TestTypeScriptSDKs",
	37: "httpserver.TestRow37KeepAlive conformance.TestRow37KeepAlive",
	38: "conformance.TestRow38LongCalls",
	39: "httpserver.TestRow39Cancelled conformance.TestRow39Cancelled",
	40: "httpserver.TestRow40ConnectionDrop conformance.TestRow40ConnectionDrop",
	43: "httpserver.TestRow43Health conformance.TestRow43Load",
	44: "httpserver.TestRow44NothingStays conformance.TestRow44NothingStays",
	45: "httpserver.TestRow45Panic", // the real handler has no way to panic on purpose
	46: "httpserver.TestRow46ShutdownWaits conformance.TestRow46Termination",
	47: "conformance.TestRow47Token",
}

// The table tells the truth: each test in it exists.
func TestRowsHaveTests(t *testing.T) {
	folders := map[string]string{"conformance": ".", "httpserver": "../../internal/httpserver", "mcpserver": "../../internal/mcpserver"}
	exist := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for name, dir := range folders {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range declared.FindAllSubmatch(source, -1) {
				exist[name+"."+string(found[1])] = true
			}
		}
	}
	for row := range 48 {
		if slices.Contains([]int{0, 15, 24, 26, 29, 41, 42}, row) {
			continue // no such row
		}
		if rows[row] == "" {
			t.Errorf("row %d has no test", row)
		}
		for test := range strings.FieldsSeq(rows[row]) {
			if !exist[test] {
				t.Errorf("row %d: there is no %s", row, test)
			}
		}
	}
}

// A server that is killed and started again is the same server to its clients,
// old sessions included, and offers the same tool, byte for byte.
func TestRows14And19Restart(t *testing.T) {
	opts := harness.Options(t)
	first := harness.Start(t, opts, long)
	first.AwaitHealthy(t)
	// The port changes, so the clients see a proxy.
	var target atomic.Pointer[url.URL]
	point := func(s *harness.Server) {
		to, err := url.Parse(s.Base())
		if err != nil {
			t.Fatal(err)
		}
		target.Store(to)
	}
	point(first)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target.Load()); r.Out.Host = r.In.Host },
		FlushInterval: -1,
	})
	t.Cleanup(proxy.Close)
	sessions := map[era]*mcp.ClientSession{}
	program := object{"language": "python", "code": "print(6*7)"}
	use := func() {
		t.Helper()
		for e, session := range sessions {
			res, err := harness.Call(t.Context(), session, program)
			if err != nil || harness.Text(t, res) != fortyTwo {
				t.Errorf("%s: %v, %v", e, res, err)
			}
		}
	}
	for _, e := range []era{legacy, modern} {
		client := mcp.NewClient(&mcp.Implementation{Name: "conformance", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: proxy.URL + "/mcp", HTTPClient: harness.HTTPClient()},
			&mcp.ClientSessionOptions{ProtocolVersion: string(e)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = session.Close() }()
		sessions[e] = session
	}
	use()
	begun, err := legacy.send(t.Context(), first, "", "initialize", object{"protocolVersion": legacy, "capabilities": object{}, "clientInfo": object{"name": "c", "version": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	list := func(s *harness.Server, e era) string {
		a, err := e.send(t.Context(), s, "", "tools/list", object{})
		if err != nil {
			t.Fatal(err)
		}
		return a.raw
	}
	before := list(first, legacy) + list(first, modern)

	first.Kill()
	second := harness.Serve(t, opts, long)
	point(second)
	use()
	stale := begun.header.Get("Mcp-Session-Id")
	if stale == "" {
		t.Error("initialize gave no session id")
	}
	for name, session := range map[string]string{"stale": stale, "unknown": "no-such-session", "none": ""} {
		a, err := legacy.send(t.Context(), second, session, "tools/call", arguments(program))
		if err != nil || a.text() != fortyTwo {
			t.Errorf("%s session: %+v, %v", name, a, err)
		}
	}
	if after := list(second, legacy) + list(second, modern); after != before || !strings.Contains(after, "execute_code") {
		t.Errorf("tools/list changed:\n%s\n%s", before, after)
	}
}

// small has little memory, so that a program which wants too much of it is quick.
const small = "[sandbox]\nmemory_limit = \"64m\"\ntmpfs_size = \"16m\"\nshm_size = \"8m\"\n[pool]\npython = 0\nbash = 0\n"

// Rows 27, 28, 30, 32, 33, 35, and 34 without the switch.
func TestRows27To33And35Results(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), small)
	inBothEras(t, s, func(t *testing.T, e era) {
		for name, c := range map[string]struct {
			args    object
			want    string
			isError bool
		}{
			"27 both streams":      {object{"language": "bash", "code": "echo out; echo err >&2; exit 3"}, exitsAt3, false},
			"28 no output":         {object{"language": "bash", "code": "true"}, "exit_code: 0\n(no output)", false},
			"28 stdout only":       {object{"language": "bash", "code": "echo out"}, "exit_code: 0\nstdout:\nout", false},
			"30 binary":            {object{"language": "bash", "code": `printf '\xff\xfe\x00a'`}, "exit_code: 0\nstdout (1 NUL byte left out; 2 bytes not UTF-8):\n\uFFFDa", false},
			"32 time-out":          {object{"language": "bash", "code": "echo begun; sleep 60", "timeout_seconds": 1}, "timed_out: killed after 1 s (raise timeout_seconds, at most 60)\nstdout:\nbegun", true},
			"33 signal":            {object{"language": "bash", "code": "kill -SEGV $$"}, "exit_code: 139 (killed by SIGSEGV, segmentation fault)\n(no output)", false},
			"33 its own kill":      {object{"language": "bash", "code": "kill -KILL $$"}, "exit_code: 137 (killed by SIGKILL)\n(no output)", false},
			"33 exit like a kill":  {object{"language": "bash", "code": "exit 137"}, "exit_code: 137\n(no output)", false},
			"33 memory":            {object{"language": "python", "code": "print('begun')\nb = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1"}, "exit_code: 137 (killed: memory limit of 64 MiB)\nstdout:\nbegun", false},
			"33 memory of a child": {object{"language": "bash", "code": "python3 -c 'b = b\"x\" * (1 << 30)'; exit 5"}, "", false},
		} {
			t.Run(name, func(t *testing.T) {
				a := e.call(t, s, c.args)
				if c.want != "" && a.text() != c.want || a.Result.IsError != c.isError {
					t.Errorf("isError %v, %q, want %q", a.Result.IsError, a.text(), c.want)
				}
				if c.want == "" && !strings.HasPrefix(a.text(), "exit_code: 5 (a process was killed at the memory limit of 64 MiB)\n") {
					t.Errorf("%q", a.text())
				}
				if strings.Contains(a.raw, `\u0000`) || !utf8.ValidString(a.raw) {
					t.Errorf("control characters in %q", a.raw)
				}
				if a.Result.StructuredContent != nil {
					t.Error("structured content without the switch")
				}
				checkMeta(t, a)
			})
		}
		gone(t, s) // row 32: no process outlives its call
	})
}

// checkMeta holds the status in _meta against row 35.
func checkMeta(t *testing.T, a *answer) {
	t.Helper()
	raw := a.Result.Meta["code-execution-sandbox/result"]
	var status struct {
		Status     string
		ExitCode   *int  `json:"exit_code"`
		TimedOut   *bool `json:"timed_out"`
		OOMKilled  *bool `json:"oom_killed"`
		Truncated  *bool
		DurationMS *int64 `json:"duration_ms"`
		QueuedMS   *int64 `json:"queued_ms"`
	}
	if err := json.Unmarshal(raw, &status); err != nil {
		t.Fatalf("_meta %s: %v", raw, err)
	}
	if status.Status == "" || status.ExitCode == nil || status.TimedOut == nil || status.OOMKilled == nil || status.Truncated == nil || status.DurationMS == nil || status.QueuedMS == nil || len(raw) >= 300 {
		t.Errorf("_meta is %s", raw)
	}
	if text := a.text(); *status.TimedOut != strings.HasPrefix(text, "timed_out: ") || *status.OOMKilled != strings.Contains(text, "memory limit") ||
		!*status.TimedOut && !strings.HasPrefix(text, fmt.Sprintf("exit_code: %d", *status.ExitCode)) {
		t.Errorf("_meta %s does not agree with %q", raw, text)
	}
}

// cut is the note in the middle of long output.
var cut = regexp.MustCompile(`\[\.\.\. omitted: ([0-9,]+) lines / ([0-9,]+) characters and ([0-9,]+) bytes that were not kept; `)

// Row 31: output without end ends at the cap, counted, and the server stays small.
func TestRow31Floods(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), small)
	memory := func() float64 {
		n, err := strconv.ParseFloat(s.Metric(t, "process_resident_memory_bytes"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	modern.call(t, s, object{"language": "bash", "code": "true"})
	before := memory()
	const lines, width = 1_000_000, 10
	a := modern.call(t, s, object{"language": "python", "code": fmt.Sprintf("for i in range(%d): print(f'{i:09d}')", lines), "timeout_seconds": 60})
	text := a.text()
	if n := utf8.RuneCountInString(text); n > 16_000+1_000 {
		t.Errorf("%d characters", n)
	}
	body, ok := strings.CutPrefix(text, "exit_code: 0\nstdout (cut in the middle):\n000000000\n000000001\n")
	if !ok || !strings.HasSuffix(body, "\n000999998\n000999999") {
		t.Errorf("begins %.100q, ends %q", text, text[len(text)-50:])
	}
	found := cut.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing is counted in %.2000q", text)
	}
	var counts []int
	for _, number := range found[1:] {
		n, err := strconv.Atoi(strings.ReplaceAll(number, ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, n)
	}
	shown := strings.Count(text, "\n") + 1 - 3 // the lines of the status, the heading and the note
	if got := shown*width + counts[1] + counts[2]; got != lines*width {
		t.Errorf("%d shown and %v omitted make %d bytes, want %d", shown*width, counts, got, lines*width)
	}

	begin := time.Now()
	a = modern.call(t, s, object{"language": "bash", "code": "yes", "timeout_seconds": 2})
	if !strings.HasPrefix(a.text(), "timed_out: killed after 2 s (raise timeout_seconds, at most 60)\nstdout (cut in the middle):\ny\ny\n") || utf8.RuneCountInString(a.text()) > 17_000 {
		t.Errorf("yes: %.300q", a.text())
	}
	t.Logf("yes with a limit of 2 s was answered after %v; %s; memory %+.1f MB", time.Since(begin).Round(time.Millisecond),
		cut.FindString(a.text()), (memory()-before)/1e6)
	if grown := memory() - before; grown > 128e6 {
		t.Errorf("the server grew by %.0f MB", grown/1e6)
	}
}

// Row 34 with the switch: results obey the schema that is published, and bring
// the same text.
func TestRow34Structured(t *testing.T) {
	opts := harness.Options(t)
	plain := harness.Start(t, opts, small)
	plain.AwaitHealthy(t)
	programs := []object{
		{"language": "python", "code": "print(6*7)"},
		{"language": "bash", "code": "echo out; echo err >&2; exit 3"},
		{"language": "bash", "code": "kill -SEGV $$"},
		{"language": "bash", "code": `printf '\xff\xfe\x00a'`},
		{"language": "bash", "code": "seq 100000"},
		{"language": "python", "code": "b = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1"},
	}
	var want []string
	for _, p := range programs {
		want = append(want, modern.call(t, plain, p).text())
	}
	plain.Stop(t)

	s := harness.Serve(t, opts, small+"[result]\nstructured = true\n")
	list, err := s.Connect(t).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(list.Tools[0].OutputSchema)
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range programs {
		a := modern.call(t, s, p)
		if a.text() != want[i] {
			t.Errorf("%v: the text is %q, want %q", p, a.text(), want[i])
		}
		var content any
		if err := json.Unmarshal(a.Result.StructuredContent, &content); err != nil {
			t.Fatalf("%v: %v", p, err)
		}
		if err := resolved.Validate(content); err != nil {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// Row 37: a client that did not ask for progress gets the headers early, and
// comments, so that it does not give up either.
func TestRow37KeepAlive(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	inBothEras(t, s, func(t *testing.T, e era) {
		req, err := e.request(t.Context(), s, "", "tools/call", arguments(object{"language": "bash", "code": "sleep 11", "timeout_seconds": 60}))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		early := time.Since(begin)
		var comments, results int
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			switch {
			case strings.HasPrefix(lines.Text(), ":"):
				comments++
			case strings.HasPrefix(lines.Text(), "data: "):
				results++
			}
		}
		if comments == 0 || results != 1 {
			t.Errorf("%d comments and %d messages in 11 s", comments, results)
		}
		if total := time.Since(begin); total-early < 3*time.Second {
			t.Errorf("headers after %v of %v", early, total)
		}
	})
}

// call is a call that runs until something ends it.
type call struct {
	done  chan *answer // gets the answer, nil when there was none
	sleep string       // the command line of its program, as no other's
}

// pending starts a call and waits until its program runs.
func pending(ctx context.Context, t *testing.T, s *harness.Server, e era, session string) call {
	t.Helper()
	seconds := strconv.Itoa(100_000 + rand.IntN(900_000))
	c := call{make(chan *answer, 1), "sleep\x00" + seconds + "\x00"}
	go func() {
		a, err := e.send(ctx, s, session, "tools/call", arguments(object{"language": "bash", "code": "echo begun; sleep " + seconds, "timeout_seconds": 110}))
		if err != nil {
			a = nil
		}
		c.done <- a
	}()
	eventually(t, "the program runs", func() bool { return c.runs(t) })
	return c
}

// runs looks for the program among all processes of the host.
func (c call) runs(t *testing.T) bool {
	t.Helper()
	found := false
	processes(t, func(_ string, cmdline []byte) { found = found || string(cmdline) == c.sleep })
	return found
}

// ended waits for the program's end.
func (c call) ended(t *testing.T) {
	t.Helper()
	took := eventually(t, "the program has ended", func() bool { return !c.runs(t) })
	t.Logf("the program was gone after %v", took.Round(time.Millisecond))
}

// processes visits all processes of the host.
func processes(t *testing.T, visit func(dir string, cmdline []byte)) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if cmdline, err := os.ReadFile(dir + "/cmdline"); err == nil { // else it has ended
			visit(dir, cmdline)
		}
	}
}

// Row 39: an older client withdraws a call; the same id in another session
// runs on.
func TestRow39Cancelled(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	one := pending(t.Context(), t, s, legacy, "session-one")
	two := pending(t.Context(), t, s, legacy, "session-two")
	withdraw := func(session string) {
		t.Helper()
		a, err := legacy.send(t.Context(), s, session, "notifications/cancelled", object{"requestId": 1})
		if err != nil || a.status != http.StatusAccepted {
			t.Fatal(a, err)
		}
	}
	withdraw("session-three") // of nobody
	withdraw("session-one")
	one.ended(t)
	if a := <-one.done; a == nil || a.text() != "canceled: the caller withdrew the call; the program was killed\nstdout:\nbegun" {
		t.Errorf("the withdrawn call: %+v", a)
	}
	if !two.runs(t) {
		t.Error("the call of another session ended too")
	}
	withdraw("session-two")
	two.ended(t)
	<-two.done
	gone(t, s)
}

// Row 40: a client that goes away takes its program with it.
func TestRow40ConnectionDrop(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	inBothEras(t, s, func(t *testing.T, e era) {
		ctx, drop := context.WithCancel(t.Context())
		defer drop()
		c := pending(ctx, t, s, e, "session")
		drop()
		c.ended(t)
		<-c.done
		gone(t, s)
	})
}

// Row 43: more calls than there are slots and places in the queue.
func TestRow43Load(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nmax_concurrent = 2\n[queue]\nmax_waiting = 2\nmax_wait_seconds = 1\n[pool]\npython = 0\nbash = 0\n")
	const callers = 12
	answers := make(chan *answer, callers)
	for i := range callers {
		e := []era{legacy, modern}[i%2]
		go func() {
			a, err := e.send(t.Context(), s, "", "tools/call", arguments(object{"language": "bash", "code": "sleep 5; echo done", "timeout_seconds": 30}))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	var (
		latencies  []time.Duration
		done, busy int
	)
	for done+busy < callers {
		select {
		case a := <-answers:
			switch {
			case a.status != http.StatusOK || a.Error != nil:
				t.Fatalf("%d %s", a.status, a.raw)
			case a.text() == "exit_code: 0\nstdout:\ndone" && !a.Result.IsError:
				done++
			case strings.HasPrefix(a.text(), "server busy (2 running, ") && strings.HasSuffix(a.text(), "; retry in a few seconds") && a.Result.IsError:
				busy++
			default:
				t.Fatalf("%s", a.raw)
			}
		default:
			begin := time.Now()
			resp, err := http.Get(s.Base() + "/healthz")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("healthz: %s", resp.Status)
			}
			latencies = append(latencies, time.Since(begin))
			time.Sleep(20 * time.Millisecond)
		}
	}
	if done < 2 || busy < callers-2-2*2 {
		t.Errorf("%d calls were served and %d told that the server is busy", done, busy)
	}
	slices.Sort(latencies)
	t.Logf("%d served, %d busy; healthz %d times, p50 %v, p99 %v", done, busy, len(latencies),
		latencies[len(latencies)/2], latencies[len(latencies)*99/100])
	if p50 := latencies[len(latencies)/2]; p50 > time.Second {
		t.Errorf("healthz takes %v", p50)
	}
}

// Row 44: clients that come and go leave nothing behind.
func TestRow44NothingStays(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[pool]\npython = 0\nbash = 0\n")
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	client := &http.Client{Transport: transport}
	// each calls what n times, sixteen at a time.
	each := func(n int, what func()) {
		var (
			left atomic.Int64
			wg   sync.WaitGroup
		)
		left.Store(int64(n))
		for range 16 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					what()
				}
			})
		}
		wg.Wait()
		transport.CloseIdleConnections()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
	do := func(ctx context.Context, e era, method string, params object) error {
		req, err := e.request(ctx, s, "", method, params)
		if err != nil {
			t.Error(err)
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		_, err = bufio.NewReader(resp.Body).WriteTo(&bytes.Buffer{})
		return err
	}
	begin := func() {
		if err := do(t.Context(), legacy, "initialize", object{"protocolVersion": legacy, "capabilities": object{}, "clientInfo": object{"name": "c", "version": "1"}}); err != nil {
			t.Error(err)
		}
	}
	var aborted atomic.Int64
	abort := func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(100))*time.Millisecond)
		defer cancel()
		e := []era{legacy, modern}[rand.IntN(2)]
		if do(ctx, e, "tools/call", arguments(object{"language": "bash", "code": "sleep 10"})) != nil {
			aborted.Add(1)
		}
	}
	level := func() (goroutines, files, memory float64) {
		gone(t, s)
		for name, into := range map[string]*float64{"go_goroutines": &goroutines, "process_open_fds": &files, "process_resident_memory_bytes": &memory} {
			var err error
			if *into, err = strconv.ParseFloat(s.Metric(t, name), 64); err != nil {
				t.Fatal(err)
			}
		}
		return goroutines, files, memory
	}
	each(50, begin)
	each(50, abort)
	goroutines, files, memory := level()
	each(1000, begin)
	aborted.Store(0)
	each(1000, abort)
	if aborted.Load() < 900 {
		t.Errorf("only %d calls were aborted", aborted.Load())
	}
	var g, f, m float64
	eventually(t, "the server is at its old level", func() bool {
		g, f, m = level()
		return g <= goroutines+5 && f <= files+5
	})
	t.Logf("goroutines %v, then %v; files %v, then %v; memory %.1f MB, then %.1f MB", goroutines, g, files, f, memory/1e6, m/1e6)
	if m > memory+64e6 {
		t.Errorf("memory grew by %.0f MB", (m-memory)/1e6)
	}
}

// Row 46: at SIGTERM a call that outlives the grace is ended and answered, new
// ones are refused, and nothing is left.
func TestRow46Termination(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long) // with a grace of 2 s
	running := pending(t.Context(), t, s, legacy, "")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.Stop(t) // exit code 0
	}()
	eventually(t, "it drains", func() bool { return strings.Contains(s.Log(), "shutting down") })
	a, err := modern.send(t.Context(), s, "", "tools/call", arguments(object{"language": "bash", "code": "true"}))
	if err == nil && a.status != http.StatusServiceUnavailable {
		t.Errorf("a call after SIGTERM: %d %s", a.status, a.raw)
	}
	if a := <-running.done; a == nil || a.text() != "canceled: the server is shutting down; the program was killed\nstdout:\nbegun" || !a.Result.IsError {
		t.Errorf("the running call: %+v", a)
	}
	<-stopped
	for _, left := range harness.Leftovers(t, s.Options) {
		t.Error("left behind:", left)
	}
}

// Row 47: the token is known to the server and its clients alone.
func TestRow47Token(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Serve(t, opts, "[logging]\nlevel = \"debug\"\n"+long)
	var seen strings.Builder
	for _, args := range []object{
		{"language": "bash", "code": "env; cat /proc/*/environ /proc/*/cmdline 2>&1; ls -la /proc/self/fd; cat /tmp/main.sh"},
		{"language": "python", "code": "import os; print(os.environ); raise SystemExit(open('/proc/1/environ').read())"},
		{"language": "ruby", "code": "x"},
		{"language": "bash", "code": "sleep 9", "timeout_seconds": 1},
	} {
		for _, e := range []era{legacy, modern} {
			seen.WriteString(e.call(t, s, args).raw)
		}
	}
	for _, token := range []string{harness.Token + "x", harness.Token[1:], ""} { // refused, and what was almost right is not shown either
		req, err := modern.request(t.Context(), s, "", "tools/list", object{})
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		a, err := do(req)
		if err != nil || a.status != http.StatusUnauthorized {
			t.Fatal(a, err)
		}
		seen.WriteString(a.raw)
	}
	for _, path := range []string{"/healthz", "/metrics", "/nothing"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Base()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+harness.Token)
		a, err := do(req)
		if err != nil {
			t.Fatal(err)
		}
		seen.WriteString(a.raw)
	}
	if strings.Contains(seen.String(), harness.Token[1:]) {
		t.Error("an answer shows the token")
	}

	// What runs for the server: shims and sandboxes, seen from the host.
	ctx, drop := context.WithCancel(t.Context())
	defer drop()
	c := pending(ctx, t, s, modern, "")
	looked := 0
	processes(t, func(dir string, cmdline []byte) {
		cgroups, _ := os.ReadFile(dir + "/cgroup") // it may have ended
		shim := bytes.Contains(cmdline, []byte("containerd-shim")) && bytes.Contains(cmdline, []byte(harness.Namespace))
		if !shim && !bytes.Contains(cgroups, []byte(opts.CgroupParent)) {
			return
		}
		environ, err := os.ReadFile(dir + "/environ")
		if err != nil {
			return
		}
		looked++
		if bytes.Contains(append(environ, cmdline...), []byte(harness.Token)) {
			t.Errorf("the token is in the environment or arguments of %q", cmdline)
		}
	})
	if looked < 3 { // the shim, the launcher and the program
		t.Errorf("only %d processes were looked at", looked)
	}
	drop()
	<-c.done
	gone(t, s)
	s.Stop(t)
	if log := s.Log(); strings.Contains(log, harness.Token[1:]) || !strings.Contains(log, "level=DEBUG") {
		t.Error("the log shows the token, or nothing")
	}
}
