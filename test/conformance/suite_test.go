package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code-execution-sandbox/test/harness"
)

// Row 22: the official suite, of both eras. What it sees fail stands in
// baseline/ with the reason; another failure, and a line there for what passes,
// is an error. It cannot send a token, so a proxy does.
func TestRow22OfficialSuite(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	proxy := tokenProxy(t, s)
	for _, run := range []struct{ suite, version string }{
		{"0.1", "2025-11-25"}, {"0.2", "2025-11-25"}, {"0.2", "2026-07-28"},
	} {
		t.Run(run.suite+"/"+run.version, func(t *testing.T) {
			baseline, err := filepath.Abs("baseline/" + run.suite + "-" + run.version + ".yml")
			if err != nil {
				t.Fatal(err)
			}
			out := t.TempDir()
			args := []string{"server", "--url", proxy + "/mcp", "--expected-failures", baseline, "--output-dir", out}
			if run.suite != "0.1" {
				args = append(args, "--requirements", run.version)
			}
			c := command(t, in(t, "conformance-"+run.suite, "dist", "index.js"), args...)
			code := c.exit(t)
			passed, failed := verdicts(t, out)
			t.Logf("%d checks passed, %d failed:\n%s", passed, len(failed), strings.Join(failed, "\n"))
			if code != 0 {
				t.Errorf("exit code %d\n%s%s", code, c.stdout.String(), c.stderr.String())
			}
			// A scenario that nobody scores ends in time too, and a suite that
			// reached nothing would find nothing wrong.
			if passed < 10 || strings.Contains(strings.Join(failed, "\n"), "scenario-timeout") {
				t.Errorf("only %d checks passed, or there was a time-out", passed)
			}
		})
	}
}

// verdicts counts the checks that passed, and lists those that failed with what
// the suite has to say.
func verdicts(t *testing.T, dir string) (passed int, failed []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no verdicts in %s: %v", dir, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(raw, &checks); err != nil {
			t.Fatal(err)
		}
		for _, check := range checks {
			switch check.Status {
			case "SUCCESS":
				passed++
			case "FAILURE":
				failed = append(failed, fmt.Sprintf("%s: %s", check.ID, check.ErrorMessage))
			}
		}
	}
	return passed, failed
}

// tokenProxy adds the token, and leaves Host and Origin as they are.
func tokenProxy(t *testing.T, s *harness.Server) string {
	t.Helper()
	target, err := url.Parse(s.Base())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("Authorization", "Bearer "+harness.Token)
			// An answer that is faster than the end of a body that is passed
			// on would close that body under the transport.
			body, _ := io.ReadAll(r.In.Body)
			r.Out.Body = io.NopCloser(bytes.NewReader(body))
		},
		FlushInterval: -1,
	})
	t.Cleanup(server.Close)
	return server.URL
}
