package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/test/harness"
)

// What a client must get for the programs that each of them runs.
const (
	fortyTwo = "exit_code: 0\nstdout:\n42"
	exitsAt3 = "exit_code: 3\nstdout:\nout\nstderr:\nerr"
	reversed = "exit_code: 0\nstdout:\nolleh"
	tooLong  = "timed_out: killed after 1 s (raise timeout_seconds, at most 120)\nstdout:\nbegun"
	noRuby   = `invalid argument "language": "ruby" is not supported; use "bash" or "python"`
)

// The Inspector, whose --strict judges the schema by what model vendors accept.
func TestInspector(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	inspector := func(t *testing.T, want int, args ...string) string {
		t.Helper()
		c := command(t, in(t, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"),
			append([]string{"--cli", s.URL, "--transport", "http"}, args...)...)
		c.Env = append(c.Env, "MCP_INSPECTOR_SECRET_STORE=memory")
		if code := c.exit(t); code != want {
			t.Errorf("%q: exit code %d, want %d\n%s%s", args, code, want, c.stdout.String(), c.stderr.String())
		}
		return c.stdout.String() + c.stderr.String()
	}
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			with := func(args ...string) []string {
				return append([]string{"--header", "Authorization: Bearer " + harness.Token, "--protocol-era", era, "--format", "json"}, args...)
			}
			call := func(args string) []string {
				return with("--method", "tools/call", "--tool-name", "execute_code", "--tool-args-json", args)
			}
			if out := inspector(t, 0, with("--method", "initialize")...); !strings.Contains(out, "code-execution-sandbox") {
				t.Errorf("initialize: %s", out)
			}
			if out := inspector(t, 0, with("--method", "tools/list", "--strict")...); !strings.Contains(out, "execute_code") {
				t.Errorf("tools/list: %s", out)
			}
			for _, c := range []struct {
				args, want string
				code       int
			}{
				{`{"language":"python","code":"print(6*7)"}`, fortyTwo, 0},
				{`{"language":"bash","code":"echo out; echo err >&2; exit 3"}`, exitsAt3, 0},
				{`{"language":"python","code":"print(input()[::-1])","stdin":"hello\n"}`, reversed, 0},
				{`{"language":"bash","code":"echo begun; sleep 60","timeout_seconds":1}`, tooLong, 5},
				{`{"language":"ruby","code":"puts 1"}`, noRuby, 5},
			} {
				want, _ := json.Marshal(c.want)
				if out := inspector(t, c.code, call(c.args)...); !strings.Contains(out, string(want)) {
					t.Errorf("%s: %s, want %s in it", c.args, out, want)
				}
			}
		})
	}
	if out := inspector(t, 3, "--stored-auth-only", "--method", "tools/list"); !strings.Contains(out, "auth") {
		t.Errorf("without a token: %s", out)
	}
}

// The TypeScript SDKs: most clients are built on one of them.
func TestTypeScriptSDKs(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	for version, protocol := range map[string]string{"v1": "2025-11-25", "v2": "2025-11-25", "v2-auto": "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			in(t, "@modelcontextprotocol", "client")
			dir, err := packages()
			if err != nil {
				t.Fatal(err)
			}
			c := command(t, dir+"/sdk.mjs", s.URL, version)
			stdin, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			c.Stdout = nil
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			type said struct {
				Step, Text, Error string
				Code              any
				IsError           bool
			}
			steps := map[string]said{}
			lines := bufio.NewScanner(stdout)
			lines.Buffer(nil, 1<<20)
			next := func() {
				t.Helper()
				if !lines.Scan() {
					_ = c.Wait()
					t.Fatalf("it ended early: %s", c.stderr.String())
				}
				var step said
				if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
					t.Fatalf("%q: %v", lines.Text(), err)
				}
				steps[step.Step] = step
			}
			for steps["notifications"].Step == "" {
				next()
			}
			eventually(t, "the call to abort runs", running(t, s, "1"))
			if _, err := io.WriteString(stdin, "now\n"); err != nil {
				t.Fatal(err)
			}
			next()
			gone(t, s)
			if err := errors.Join(stdin.Close(), c.Wait()); err != nil {
				t.Error(err)
			}

			if got := steps["connected"].Text; got != protocol && version != "v1" { // v1 does not tell
				t.Errorf("protocol %q, want %q", got, protocol)
			}
			for step, want := range map[string]said{
				"tools":    {Text: "execute_code"},
				"print":    {Text: fortyTwo},
				"exit":     {Text: exitsAt3},
				"stdin":    {Text: reversed},
				"limit":    {Text: tooLong, IsError: true},
				"invalid":  {Text: noRuby, IsError: true},
				"progress": {Text: "exit_code: 0\nstdout:\ndone"},
			} {
				got := steps[step]
				if got.Text != want.Text || got.IsError != want.IsError || got.Error != "" {
					t.Errorf("%s: %+v, want %+v", step, got, want)
				}
			}
			if got := steps["unknown"]; got.Code != float64(jsonrpc.CodeInvalidParams) {
				t.Errorf("unknown tool: %+v", got)
			}
			if got := steps["notifications"].Text; strings.Count(got, ",") < 1 {
				t.Errorf("progress in 11 s: %q", got)
			}
			if got := steps["aborted"]; got.Error == "" {
				t.Errorf("aborted: %+v", got)
			}
		})
	}
}

// The go-sdk client, of both eras, over HTTP and over mcp-remote: the bridge for
// clients that know only programs, started as client-config says.
func TestGoSDKAndMCPRemote(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	direct := func(*testing.T) mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: harness.HTTPClient()}
	}
	bridge := func(t *testing.T) mcp.Transport {
		var entry struct {
			MCPServers map[string]struct {
				Args []string
				Env  map[string]string
			}
		}
		if err := json.Unmarshal([]byte(clientEntry(t, s, "claude-desktop", "--with-token")), &entry); err != nil {
			t.Fatal(err)
		}
		server := entry.MCPServers["code_exec"]
		if len(server.Args) < 2 || server.Args[1] != "mcp-remote" {
			t.Fatalf("the entry starts %q", server.Args)
		}
		// npx would look for the newest; the locked one is what is tested.
		c := command(t, in(t, "mcp-remote", "dist", "proxy.js"), server.Args[2:]...)
		for key, value := range server.Env {
			c.Env = append(c.Env, key+"="+value)
		}
		c.Stdout = nil // the transport's
		return &mcp.CommandTransport{Command: c.Cmd}
	}
	for _, c := range []struct {
		name      string
		transport func(*testing.T) mcp.Transport
		era       era
		cancels   bool
	}{
		{"go-sdk/legacy", direct, legacy, true},
		{"go-sdk/modern", direct, modern, true},
		{"mcp-remote/legacy", bridge, legacy, true},
		// A modern call is withdrawn by closing its stream, which mcp-remote
		// 0.15 leaves open: the call runs to its end, unseen.
		{"mcp-remote/modern", bridge, modern, false},
	} {
		t.Run(c.name, func(t *testing.T) { exercise(t, s, c.transport(t), c.era, c.cancels) })
	}
}

// exercise does what every client must be able to do.
func exercise(t *testing.T, s *harness.Server, transport mcp.Transport, e era, cancels bool) {
	var progress atomic.Int64
	client := mcp.NewClient(&mcp.Implementation{Name: "conformance", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progress.Add(1) },
	})
	session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: string(e)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	if got := session.InitializeResult().ProtocolVersion; got != string(e) {
		t.Errorf("protocol %s, want %s", got, e)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "execute_code" {
		t.Fatalf("%v, %v", list, err)
	}
	for _, c := range []struct {
		args    map[string]any
		want    string
		isError bool
	}{
		{map[string]any{"language": "python", "code": "print(6*7)"}, fortyTwo, false},
		{map[string]any{"language": "bash", "code": "echo out; echo err >&2; exit 3"}, exitsAt3, false},
		{map[string]any{"language": "python", "code": "print(input()[::-1])", "stdin": "hello\n"}, reversed, false},
		{map[string]any{"language": "bash", "code": "echo begun; sleep 60", "timeout_seconds": 1}, tooLong, true},
		{map[string]any{"language": "ruby", "code": "puts 1"}, noRuby, true},
	} {
		res, err := harness.Call(t.Context(), session, c.args)
		if err != nil {
			t.Fatal(err)
		}
		if got := harness.Text(t, res); got != c.want || res.IsError != c.isError {
			t.Errorf("%v: %q (isError %v), want %q", c.args, got, res.IsError, c.want)
		}
	}

	params := &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"language": "bash", "code": "sleep 7; echo done", "timeout_seconds": 60}}
	params.SetProgressToken("p")
	res, err := session.CallTool(t.Context(), params)
	if err != nil || harness.Text(t, res) != "exit_code: 0\nstdout:\ndone" {
		t.Errorf("%v, %v", res, err)
	}
	if progress.Load() == 0 {
		t.Error("no progress in 7 s")
	}

	if !cancels {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := harness.Call(ctx, session, map[string]any{"language": "bash", "code": "sleep 100", "timeout_seconds": 110})
		ended <- err
	}()
	eventually(t, "the call to cancel runs", running(t, s, "1"))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the canceled call ended with %v", err)
	}
	gone(t, s)
}

// clientEntry is what client-config prints for a client.
func clientEntry(t *testing.T, s *harness.Server, client string, flags ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Binary(),
		append([]string{"client-config", client, "--url", s.URL, "--config", harness.Config(t, s.Options, long)}, flags...)...)
	cmd.Env = append(cmd.Environ(), "SANDBOX_MCP_TOKEN="+harness.Token)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
