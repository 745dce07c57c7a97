package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"code-execution-sandbox/image"
	"code-execution-sandbox/test/harness"
)

const withoutPool = "[pool]\npython = 0\nbash = 0\n"

func TestServer(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), "[sandbox]\nmemory_limit = \"256m\"\n")
	session := s.Connect(t)
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tools.Tools) != 1 || tools.Tools[0].Name != "execute_code" {
		t.Fatalf("tools: %v", tools.Tools)
	}
	for _, want := range []string{"Bash 5", "Python 3", "No network", "60 s"} {
		if !strings.Contains(tools.Tools[0].Description, want) {
			t.Errorf("the description does not say %q:\n%s", want, tools.Tools[0].Description)
		}
	}
	for _, c := range []struct {
		args    map[string]any
		isError bool
		text    string
	}{
		{map[string]any{"language": "python", "code": "print(6*7)"}, false, "exit_code: 0\nstdout:\n42"},
		{map[string]any{"language": "bash", "code": "echo out; echo err >&2; exit 3"}, false, "exit_code: 3\nstdout:\nout\nstderr:\nerr"},
		{map[string]any{"language": "python", "code": "print(input()[::-1])", "stdin": "abc"}, false, "exit_code: 0\nstdout:\ncba"},
		{map[string]any{"language": "bash", "code": "kill -TERM $$"}, false, "exit_code: 143 (killed by SIGTERM)\n(no output)"},
		{map[string]any{"language": "bash", "code": "echo CRITICAL; sleep 30", "timeout_seconds": 1}, true, "CRITICAL"},
		{map[string]any{"language": "python", "code": "x = bytearray(1 << 30)"}, false, "memory limit"},
		{map[string]any{"language": "ruby", "code": "puts 1"}, true, `invalid argument "language"`},
	} {
		res, err := harness.Call(t.Context(), session, c.args)
		if err != nil {
			t.Fatal(err)
		}
		if text := harness.Text(t, res); !strings.Contains(text, c.text) || res.IsError != c.isError {
			t.Errorf("%v: isError %v, want %v with %q:\n%s", c.args, res.IsError, c.isError, c.text, text)
		}
	}
	// The image as the model is told of it.
	status := command(t, "image", "status", "--config", harness.Config(t, s.Options, ""))
	if out, err := status.CombinedOutput(); err != nil || !strings.Contains(string(out), "Python 3") {
		t.Errorf("image status: %v: %s", err, out)
	}
}

// What callers send and get is theirs: only level debug shows it, and nothing
// ever shows the token.
func TestLog(t *testing.T) {
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			s := harness.Serve(t, harness.Options(t), withoutPool+"[logging]\nlevel = \""+level+"\"\nformat = \"json\"\n")
			session := s.Connect(t)
			args := map[string]any{"language": "python", "code": "print('out' + 'put', input())  # source-mark", "stdin": "input-mark"}
			if _, err := harness.Call(t.Context(), session, args); err != nil {
				t.Fatal(err)
			}
			if _, err := harness.Call(t.Context(), session, map[string]any{"language": "source-mark", "code": "source-mark"}); err != nil {
				t.Fatal(err)
			}
			// A wrong token must not be shown either: it may be a right one
			// elsewhere.
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("{}"))
			req.Header.Set("Authorization", "Bearer wrong-token-mark")
			if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusUnauthorized {
				t.Fatal(resp, err)
			}
			s.Stop(t)
			log := s.Log()
			for _, mark := range []string{"source-mark", "output", "input-mark", `"memory_limit"`} {
				if shown := strings.Contains(log, mark); shown != (level == "debug") && mark != `"memory_limit"` {
					t.Errorf("level %s shows %q: %v", level, mark, shown)
				}
			}
			for _, secret := range []string{harness.Token, "wrong-token-mark"} {
				if strings.Contains(log, secret) {
					t.Errorf("level %s shows the token %q", level, secret)
				}
			}
			if !strings.Contains(log, `"msg":"call ended"`) {
				t.Errorf("no audit event:\n%s", log)
			}
		})
	}
}

// A server that is killed leaves sandboxes behind; the next one removes them.
func TestKilledServer(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Start(t, opts, "[pool]\npython = 2\nbash = 1\n")
	s.AwaitHealthy(t)
	session := s.Connect(t)
	call := make(chan error, 1)
	go func() {
		_, err := harness.Call(t.Context(), session, map[string]any{"language": "bash", "code": "sleep 60", "timeout_seconds": 60})
		call <- err
	}()
	eventually(t, "the call runs", func() bool {
		return s.Metric(t, "code_execution_sandbox_slots_taken") == "1"
	})
	s.Kill()
	if err := <-call; err == nil {
		t.Error("a call on a killed server was answered")
	}
	if len(harness.Leftovers(t, opts)) == 0 {
		t.Fatal("nothing is left to sweep: this test proves nothing")
	}
	next := harness.Serve(t, opts, withoutPool)
	eventually(t, "the sweep", func() bool { return strings.Contains(next.Log(), "swept what a dead server left") })
	next.Stop(t)
	for _, left := range harness.Leftovers(t, opts) {
		t.Error("left behind:", left)
	}
}

// A running call ends before the server does.
func TestTermination(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Serve(t, opts, withoutPool)
	session := s.Connect(t)
	type answer struct {
		text string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		res, err := harness.Call(t.Context(), session, map[string]any{"language": "bash", "code": "echo begun; sleep 1; echo ended"})
		if err != nil {
			done <- answer{err: err}
			return
		}
		done <- answer{text: harness.Text(t, res)}
	}()
	// Not the slot alone: a preparation can take longer than the grace.
	eventually(t, "the program runs", func() bool { return len(harness.Asleep(t, opts)) == 1 })
	s.Stop(t)
	if a := <-done; a.err != nil || !strings.Contains(a.text, "ended") {
		t.Errorf("a call at SIGTERM, within the grace: %v %q", a.err, a.text)
	}
}

// A call that comes before the server has looked at its host waits for that: one
// that stood at the socket during a restart is answered like any other.
func TestCallAtStart(t *testing.T) {
	opts := harness.Options(t)
	s := harness.Start(t, opts, withoutPool)
	res, err := harness.Call(t.Context(), s.Connect(t), map[string]any{"language": "bash", "code": "echo early"})
	if err != nil {
		t.Fatal(err)
	}
	if text := harness.Text(t, res); !strings.Contains(text, "early") {
		t.Errorf("got %s", text)
	}
	s.Stop(t)
	for _, left := range harness.Leftovers(t, opts) {
		t.Error("left behind:", left)
	}
}

// A server without an image says what to type and waits for it.
func TestImageComesLater(t *testing.T) {
	opts := harness.Options(t)
	const name = "code-execution-sandbox-later:test"
	s := harness.Start(t, opts, withoutPool+"[sandbox]\nimage = \""+name+"\"\n")
	var health struct{ Status, Check, Reason string }
	get := func() int {
		resp, err := http.Get(s.Base() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if err := json.NewDecoder(resp.Body).Decode(&health); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	eventually(t, "the reason is known", func() bool { return get() == 503 && strings.Contains(health.Reason, name) })
	if health.Check != "image" || !strings.Contains(health.Reason, "code-execution-sandbox image import") {
		t.Errorf("healthz: %+v", health)
	}
	tag := exec.CommandContext(t.Context(), "docker", "tag", harness.ImageName, name)
	if out, err := tag.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", name).Run() })
	if _, _, err := image.Import(t.Context(), opts.Client, image.Options{Name: name}, image.Docker("")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := image.Remove(context.WithoutCancel(t.Context()), opts.Client, name); err != nil {
			t.Error(err)
		}
	})
	s.AwaitHealthy(t)
	res, err := harness.Call(t.Context(), s.Connect(t), map[string]any{"language": "bash", "code": "echo ok"})
	if err != nil || !strings.Contains(harness.Text(t, res), "ok") {
		t.Error(res, err)
	}
	s.Stop(t)
}

// command is the binary with arguments, in an empty directory.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Binary(), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SANDBOX_MCP_TOKEN="+harness.Token)
	return cmd
}

// Whatever an operator gets wrong is one line that says what and what to do.
func TestOneLineErrors(t *testing.T) {
	opts := harness.Options(t)
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	program := filepath.Join(t.TempDir(), "p.sh")
	if err := os.WriteFile(program, []byte("echo hi"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		command []string
		config  string
		env     string
		want    []string
	}{
		{"wrong key", []string{"serve"}, "[sandbox]\nmemory_limt = \"1g\"\n", "", []string{"config.toml:", "sandbox.memory_limt", "memory_limit"}},
		{"wrong type", []string{"serve"}, "[sandbox]\npids_limit = \"many\"\n", "", []string{"sandbox.pids_limit", "16"}},
		{"bad size", []string{"serve"}, "[sandbox]\nmemory_limit = \"1x\"\n", "", []string{"sandbox.memory_limit", "1x"}},
		{"missing token", []string{"serve"}, "", "SANDBOX_MCP_TOKEN=", []string{"SANDBOX_MCP_TOKEN", "openssl rand"}},
		{"short token", []string{"serve"}, "", "SANDBOX_MCP_TOKEN=short", []string{"shorter than 16"}},
		{"used port", []string{"serve"}, "http_addr = \"" + taken.Addr().String() + "\"\n", "", []string{taken.Addr().String(), "in use"}},
		{"no containerd", []string{"run", program}, "[containerd]\naddress = \"/nowhere/containerd.sock\"\n", "", []string{"/nowhere/containerd.sock", "containerd.address"}},
		{"no image", []string{"run", program}, "[sandbox]\nimage = \"nowhere:latest\"\n", "", []string{"nowhere:latest", "code-execution-sandbox image import"}},
		{"no image in Docker", []string{"image", "import"}, "[sandbox]\nimage = \"nowhere:latest\"\n", "", []string{"nowhere:latest", "docker-build"}},
		{"no Docker", []string{"image", "import"}, "[docker]\nsocket = \"/nowhere/docker.sock\"\n", "", []string{"/nowhere/docker.sock"}},
		{"no program", []string{"run", "/nowhere/p.py"}, "", "", []string{"/nowhere/p.py", "no such file"}},
		{"no language", []string{"run", "-"}, "", "", []string{"--language"}},
		{"unknown language", []string{"run", "-l", "ruby", program}, "", "", []string{"bash", "python"}},
		{"unknown flag", []string{"serve", "--prot"}, "", "", []string{"--prot"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if !strings.Contains(c.config, "[containerd]") {
				path = harness.Config(t, opts, c.config)
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(c.config, "http_addr") {
					raw = bytes.Replace(raw, []byte("http_addr = \"127.0.0.1:0\"\n"), nil, 1)
				}
				if err := os.WriteFile(path, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(path, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := command(t, append(c.command, "--config", path)...)
			if c.env != "" {
				cmd.Env = append(cmd.Env, c.env)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exited *exec.ExitError
			if !errors.As(err, &exited) || exited.ExitCode() != 125 {
				t.Fatalf("ended with %v: %s", err, stderr.String())
			}
			out := stderr.String()
			if strings.Count(out, "\n") != 1 {
				t.Errorf("not one line:\n%s", out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestRunCommand(t *testing.T) {
	opts := harness.Options(t)
	config := harness.Config(t, opts, "")
	dir := t.TempDir()
	for name, text := range map[string]string{"rev.py": "print(input()[::-1])", "in": "hello\n", "exit.sh": "echo out; echo err >&2; exit 7"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, stdin, stdout, stderr string
		args                        []string
		code                        int
	}{
		{"program on stdin", "print(input()[::-1])", "olleh\n", "", []string{"--language", "python", "--stdin", "in", "-"}, 0},
		{"program in a file", "", "olleh\n", "", []string{"--stdin", "in", "rev.py"}, 0},
		{"both", "hello\n", "olleh\n", "", []string{"--stdin", "-", "rev.py"}, 0},
		{"exit code", "", "out\n", "err\n", []string{"exit.sh"}, 7},
		{"signal", "kill -TERM $$", "", "", []string{"-l", "bash"}, 143},
		{"time limit", "sleep 9", "", "code-execution-sandbox: killed at the time limit of 1 s\n", []string{"-l", "bash", "--timeout", "1"}, 124},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command(t, append([]string{"run", "--config", config}, c.args...)...)
			cmd.Dir = dir
			cmd.Stdin = strings.NewReader(c.stdin)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%v, want exit code %d", err, c.code)
			}
			if stdout.String() != c.stdout || stderr.String() != c.stderr {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
	for _, left := range harness.Leftovers(t, opts) {
		t.Error("left behind:", left)
	}
}

func TestSpec(t *testing.T) {
	spec, err := command(t, "spec", "--config", harness.Config(t, harness.Options(t), "")).Output()
	if err != nil || !json.Valid(spec) || !bytes.Contains(spec, []byte(`"noNewPrivileges": true`)) {
		t.Errorf("spec: %v: %.200s", err, spec)
	}
}

// check names what is wrong with a host, says what to do about it, and tells
// it by its exit code.
func TestCheck(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil { //nolint:gosec // it must be executable
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, config, token string
		fit                 bool
		finding, status     string
		detail, remedy      string
	}{
		{"well", "", harness.Token, true, "self-test", "ok", "every protection holds", ""},
		{"no such key", "[sandbox]\nimages = 1\n", harness.Token, false, "configuration", "failed", "images", "config.toml.dist"},
		{"no token", "", "", true, "token", "warning", "no bearer token", "make env"},
		{"short token", "", "short", false, "token", "failed", "16", "make env"},
		{"no containerd", "[containerd]\naddress = \"/nowhere.sock\"\n", harness.Token, false, "containerd", "failed", "/nowhere.sock", "systemctl start containerd"},
		{"no image", "[sandbox]\nimage = \"nowhere:latest\"\n", harness.Token, false, "image", "failed", "nowhere:latest", "make docker-build import"},
		{"no runtime", "[containerd]\nruntime_binary = \"/nowhere/runc\"\n", harness.Token, false, "runtime", "failed", "/nowhere/runc", "runc 1.1.5"},
		{"broken runtime", "[containerd]\nruntime_binary = \"" + broken + "\"\n", harness.Token, false, "self-test", "failed", "could not be started", "containerd's log"},
		{"little memory", "[sandbox]\nmax_concurrent = 64\nmemory_limit = \"1000g\"\n", harness.Token, true, "memory", "warning", "64 programs", "sandbox.memory_limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := harness.Options(t)
			config := harness.Config(t, opts, c.config)
			if c.name == "no containerd" {
				// The harness has set its own; the key stands once.
				text, err := os.ReadFile(config)
				if err != nil {
					t.Fatal(err)
				}
				own := "address = \"" + strings.TrimPrefix(opts.Address, "unix://") + "\"\n"
				if err := os.WriteFile(config, []byte(strings.Replace(string(text), own, "", 1)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := command(t, "check", "--json", "--config", config)
			cmd.Env = append(cmd.Env, "SANDBOX_MCP_TOKEN="+c.token)
			out, err := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != map[bool]int{true: 0, false: 1}[c.fit] {
				t.Errorf("exit code %d: %v", code, err)
			}
			var report struct {
				Fit      bool
				Findings []struct{ Name, Status, Detail, Remedy string }
			}
			if err := json.Unmarshal(out, &report); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if report.Fit != c.fit {
				t.Errorf("fit is %v, want %v", report.Fit, c.fit)
			}
			seen := false
			for _, f := range report.Findings {
				if f.Name == c.finding {
					seen = true
					if f.Status != c.status || !strings.Contains(f.Detail, c.detail) || !strings.Contains(f.Remedy, c.remedy) || (f.Remedy == "") != (f.Status == "ok") {
						t.Errorf("got %+v", f)
					}
				}
				if f.Status == "failed" && f.Remedy == "" {
					t.Errorf("%s failed and has no remedy", f.Name)
				}
			}
			if !seen {
				t.Errorf("no finding %s", c.finding)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
			for _, left := range harness.Leftovers(t, opts) {
				t.Error("left behind:", left)
			}
		})
	}
}

// A private containerd ends with the server that started it, even when that
// is killed.
func TestPrivateContainerd(t *testing.T) {
	dir, err := os.MkdirTemp("", "cesp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // mapped users must pass
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	text := "http_addr = \"127.0.0.1:0\"\ndata_dir = \"" + dir + "/data\"\nrun_dir = \"" + dir + "/run\"\n" +
		"[containerd]\naddress = \"private\"\n[sandbox]\ncgroup_parent = \"/" + filepath.Base(dir) + "\"\n" + withoutPool
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, "image", "import", "--config", config).CombinedOutput(); err != nil {
		t.Fatalf("import: %v: %s", err, out)
	}
	program := command(t, "run", "-l", "bash", "--config", config)
	program.Stdin = strings.NewReader("echo private")
	if out, err := program.CombinedOutput(); err != nil || string(out) != "private\n" {
		t.Fatalf("run: %v: %s", err, out)
	}
	daemons := func() []string { // with their shims
		out, _ := exec.CommandContext(t.Context(), "pgrep", "-f", dir+"/.*containerd|containerd.*"+dir).Output()
		return strings.Fields(string(out))
	}
	if left := daemons(); len(left) > 0 {
		t.Errorf("processes %v outlive the command", left)
	}
	cmd := command(t, "serve", "--config", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the private containerd runs", func() bool { return len(daemons()) > 1 })
	// Beside a server that runs, commands use its containerd.
	eventually(t, "it answers", func() bool {
		out, err := command(t, "image", "status", "--config", config).CombinedOutput()
		return err == nil && strings.Contains(string(out), "code-execution-sandbox-runtime")
	})
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	eventually(t, "the private containerd has ended", func() bool {
		left, _ := exec.CommandContext(t.Context(), "pgrep", "-f", "containerd --config "+dir).Output()
		return len(left) == 0
	})
	// A server that has come beside a command does not end with it.
	short := command(t, "run", "-l", "bash", "--config", config)
	short.Stdin = strings.NewReader("echo begun; sleep 3")
	begun, err := short.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := short.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command runs a program", func() bool { return len(daemons()) > 1 })
	cmd = command(t, "serve", "--config", config)
	log, err := os.Create(filepath.Join(dir, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(begun); err != nil || string(out) != "begun\n" {
		t.Errorf("the command's program: %q, %v", out, err)
	}
	_ = short.Wait()
	healthy := func() bool {
		text, err := os.ReadFile(log.Name())
		_, address, found := strings.Cut(string(text), "url=")
		if err != nil || !found {
			return false
		}
		address, _, _ = strings.Cut(address, "/mcp")
		resp, err := http.Get(address + "/healthz") //nolint:gosec // a test's own server
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK && strings.Contains(string(text), "this server's now")
	}
	eventually(t, "the server has a containerd of its own", healthy)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve: %v", err)
	}
	// The shim of a sandbox outlives its containerd, until the next start.
	if out, err := command(t, "sweep", "--config", config).CombinedOutput(); err != nil {
		t.Errorf("sweep: %v: %s", err, out)
	}
	eventually(t, "nothing is left", func() bool { return len(daemons()) == 0 })
}
