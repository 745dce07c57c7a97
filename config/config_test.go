package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
}

// Every key has a rule, every rule exists, and every range reads.
func TestEveryKeyHasARule(t *testing.T) {
	cfg := Default()
	for _, f := range cfg.fields() {
		rules := 0
		for _, tag := range []string{"range", "oneof", "is"} {
			if f.tag.Get(tag) != "" {
				rules++
			}
		}
		if name := f.tag.Get("is"); name != "" && checks[name].ok == nil {
			t.Errorf("%s: no check is named %q", f.key, name)
		}
		if isBool := f.value.Kind() == reflect.Bool; rules != 1 && !isBool {
			t.Errorf("%s has %d rules, want 1", f.key, rules)
		}
		f.allowed() // panics on a range that does not read
	}
}

func TestDistIsTheDefault(t *testing.T) {
	data, err := os.ReadFile("config.toml.dist")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse("config.toml.dist", string(data))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File = "config.toml.dist"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("config.toml.dist differs from Default:\ngot  %+v\nwant %+v", got, want)
	}

	// A key that the file left out would have its default all the same.
	var tree map[string]any
	md, err := toml.Decode(string(data), &tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range Keys() {
		if !md.IsDefined(strings.Split(key.Name, ".")...) {
			t.Errorf("config.toml.dist does not list %s", key.Name)
		}
	}
}

// The comment above each key states its range, the one in force.
func TestDistStatesTheRanges(t *testing.T) {
	data, err := os.ReadFile("config.toml.dist")
	if err != nil {
		t.Fatal(err)
	}
	comments, comment, section := map[string]string{}, "", ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		name, _, isKey := strings.Cut(line, " = ")
		switch {
		case strings.HasPrefix(line, "#"):
			comment += " " + strings.TrimSpace(strings.TrimPrefix(line, "#"))
		case strings.HasPrefix(line, "["):
			section, comment = strings.Trim(line, "[]")+".", ""
		case isKey:
			comments[section+name], comment = comment, ""
		default:
			comment = ""
		}
	}
	cfg := Default()
	for _, f := range cfg.fields() {
		comment := comments[f.key]
		if len(comment) < 10 {
			t.Errorf("%s has no comment", f.key)
		}
		if f.tag.Get("range") != "" && !strings.Contains(comment, f.allowed()) {
			t.Errorf("the comment of %s does not say %q: %s", f.key, f.allowed(), comment)
		}
		for alternative := range strings.SplitSeq(f.tag.Get("oneof"), "|") {
			if !strings.Contains(comment, alternative) {
				t.Errorf("the comment of %s does not name %q: %s", f.key, alternative, comment)
			}
		}
	}
}

func TestParse(t *testing.T) {
	got, err := parse("c.toml", `
http_addr = "[::1]:0"
sandbox.memory_limit = 1073741824
sandbox.cpu_limit = 0.5
sandbox."tmpfs_size" = "128M"
pool = { python = 0, max_age_seconds = 60 }
[queue]
max_wait_seconds = 5
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File = "c.toml"
	want.HTTPAddr = "[::1]:0"
	want.Sandbox.MemoryLimit = 1 << 30
	want.Sandbox.CPULimit = 0.5
	want.Sandbox.TmpfsSize = 128 << 20
	want.Pool.Python, want.Pool.MaxAge = 0, 60
	want.Queue.MaxWait = 5
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ name, toml, want string }{
		{"out of range", "[sandbox]\n\npids_limit = 0", `c.toml:3: sandbox.pids_limit: 0 is out of range, allowed is 16 to 4096`},
		{"size out of range", "[sandbox]\nmemory_limit = \"2t\"", `c.toml:2: sandbox.memory_limit: "2t" is not a size such as "512m", allowed is 32m to 1024g`},
		{"negative size", "sandbox.memory_limit = -1", `c.toml:1: sandbox.memory_limit: -1 is out of range, allowed is 32m to 1024g`},
		{"zero tmpfs", "sandbox.shm_size = 0", `c.toml:1: sandbox.shm_size: 0 is out of range, allowed is 64k to 1024g`},
		{"not a number", "sandbox.cpu_limit = nan", `c.toml:1: sandbox.cpu_limit: NaN is out of range, allowed is 0.05 to 256`},
		{"wrong type", "max_connections = \"256\"", `c.toml:1: max_connections: "256" is not a whole number, allowed is 1 to 65536`},
		{"bool as string", "[result]\nstructured = \"yes\"", `c.toml:2: result.structured: "yes" is not a boolean, allowed is true or false`},
		{"list of numbers", "allowed_hosts = [1]", `c.toml:1: allowed_hosts: a list is not a list of strings, allowed is a list of: a host name or address with or without a port, such as "sandbox.example.org"`},
		{"table for a value", "[http_addr]\na = 1", `c.toml:1: http_addr: a table is not a string, allowed is host:port or :port, such as "127.0.0.1:8788"`},
		{"value for a section", "pool = 4", `c.toml:1: pool: 4 is not a section, allowed is [pool] with its keys below`},
		{"section as a list", "\n[[pool]]\npython = 4", `c.toml:2: pool: a list is not a section, allowed is [pool] with its keys below`},
		{"oneof", "[logging]\nlevel = \"INFO\"", `c.toml:2: logging.level: "INFO" is not allowed, allowed is "debug", "info", "warn", "error"`},
		{"twice in a list", "allowed_hosts = [\"a\", \"a\"]", `c.toml:1: allowed_hosts: "a" stands twice`},
		{"any origin", "allowed_origins = [\"*\"]", `c.toml:1: allowed_origins: "*" is not allowed, allowed is a list of: an origin, scheme://host or scheme://host:port, such as "https://chat.example.org"`},
		{"address", "http_addr = \"8788\"", `c.toml:1: http_addr: "8788" is not allowed, allowed is host:port or :port, such as "127.0.0.1:8788"`},
		{"the daemon of others", "containerd.namespace = \"moby\"", `c.toml:1: containerd.namespace: "moby" is not allowed, allowed is letters and digits joined by . _ or -, 76 at most, and neither moby nor k8s.io`},
		{"a token for a name", "auth_token_env = \"f00dfeedf00dfeed\"", `c.toml:1: auth_token_env: the value (not shown, it may be a secret) is not allowed, allowed is the name of an environment variable in capitals, such as "SANDBOX_MCP_TOKEN", or "" for none`},
		{"a number for a name", "auth_token_env = 123456", `c.toml:1: auth_token_env: the value (not shown, it may be a secret) is not a string, allowed is the name of an environment variable in capitals, such as "SANDBOX_MCP_TOKEN", or "" for none`},

		{"slip", "[sandbox]\npid_limit = 5", `c.toml:2: sandbox.pid_limit: unknown key, did you mean sandbox.pids_limit?`},
		{"wrong section", "[queue]\npids_limit = 5", `c.toml:2: queue.pids_limit: unknown key, pids_limit belongs in [sandbox]`},
		{"no section", "pids_limit = 5", `c.toml:1: pids_limit: unknown key, pids_limit belongs in [sandbox]`},
		{"below a section", "[queue]\nhttp_addr = \":1\"", `c.toml:2: queue.http_addr: unknown key in [queue]; http_addr belongs above the first section of the file`},
		{"unlike any", "[queue]\nsomething = 5", `c.toml:2: queue.something: unknown key, allowed are max_waiting, max_wait_seconds`},
		{"table in a section", "[queue.deep]\nmax_waiting = 5", `c.toml:1: queue.deep: unknown key, allowed are max_waiting, max_wait_seconds`},
		{"section slip", "[sandbx]\npids_limit = 5", `c.toml:1: sandbx: unknown section, did you mean [sandbox]?`},
		{"section unlike any", "\nnet.dns = 5", `c.toml:2: net: unknown section, allowed are [logging], [containerd], [docker], [sandbox], [queue], [pool], [result]`},

		{"time limits", "sandbox.max_timeout_seconds = 5", `c.toml:1: sandbox.default_timeout_seconds: 10 is more than sandbox.max_timeout_seconds, which is 5`},
		{"file systems", "[sandbox]\nmemory_limit = \"80m\"", `c.toml:2: sandbox.tmpfs_size: 64m and sandbox.shm_size 16m are not less together than sandbox.memory_limit, which is 80m and pays for both`},
		{"code", "[sandbox]\nmax_code_bytes = \"1m\"\ntmpfs_size = \"1m\"", `c.toml:2: sandbox.max_code_bytes: 1m is not less than sandbox.tmpfs_size, which is 1m and holds the program`},
		{"directories", "run_dir = \"/srv/x\"\ndata_dir = \"/srv/x\"", `c.toml:2: data_dir: "/srv/x" is run_dir too, use another directory`},
		{"ids", "sandbox.uid_base = 4294836224\n[pool]\npython = 1\nbash = 0", `c.toml:1: sandbox.uid_base: 4294836224 leaves no room below 2^32 for 9 times 65536 ids (2 x sandbox.max_concurrent + pool.python + pool.bash), allowed is up to 4294311936`},
		{"ids in between", "sandbox.uid_base = 1000000", `c.toml:1: sandbox.uid_base: 1000000 is not a multiple of 65536`},

		{"syntax", "a = 1\nb = = 2", `c.toml:2: expected value but found '=' instead`},
		{"duplicate", "[pool]\nbash = 1\nbash = 2", `c.toml:3: Key 'pool.bash' has already been defined.`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse("c.toml", tt.toml)
			if err == nil {
				t.Fatal("no error")
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
		})
	}
}

func TestParseReportsAllErrorsInOrder(t *testing.T) {
	_, err := parse("c.toml", `
http_adr = ":1"
max_connections = 0
[sandbox]
memory_limit = "lots"
tmpfs_size = "2g" # no second complaint: what it is compared with is unknown
[queue]
max_waiting = -1
`)
	want := `c.toml:2: http_adr: unknown key, did you mean http_addr?
c.toml:3: max_connections: 0 is out of range, allowed is 1 to 65536
c.toml:5: sandbox.memory_limit: "lots" is not a size such as "512m", allowed is 32m to 1024g
c.toml:8: queue.max_waiting: -1 is out of range, allowed is 0 to 10000`
	if err == nil || err.Error() != want {
		t.Fatalf("got\n%v\nwant\n%s", err, want)
	}
	fault, ok := errors.AsType[*Error](err)
	if !ok || fault.Line != 2 || fault.Key != "http_adr" || fault.File != "c.toml" {
		t.Errorf("first fault = %+v", fault)
	}
}

func TestValidateNamesKeysWithoutFile(t *testing.T) {
	cfg := Default()
	cfg.Sandbox.PIDsLimit = 1
	cfg.Logging.Format = "xml"
	want := `logging.format: "xml" is not allowed, allowed is "text", "json"
sandbox.pids_limit: 1 is out of range, allowed is 16 to 4096`
	if err := cfg.Validate(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestChecks(t *testing.T) {
	for name, tt := range map[string]struct{ good, bad []string }{
		"address":          {[]string{":8788", "127.0.0.1:1", "[::1]:65535", "localhost:0"}, []string{"", ":", "x", ":65536", ":http", "::1:80"}},
		"variable":         {[]string{"", "A", "_T1"}, []string{"a", "1A", "A-B", "A=B", strings.Repeat("A", 65)}},
		"path":             {[]string{"/a", "/a/b.c"}, []string{"", "/", "a", "/a/", "/a/../b", "/a//b", "/a\nb"}},
		"optional path":    {[]string{"", "/a"}, []string{"a", "/"}},
		"short path":       {[]string{"/" + strings.Repeat("a", 63)}, []string{"/" + strings.Repeat("a", 64), ""}},
		"origin":           {[]string{"https://a.example", "http://localhost:3000", "vscode-webview://x", "http://[::1]:1"}, []string{"", "*", "null", "a.example", "https://a.example/", "https://*.a.example", "https://u@a.example", "https://a.example?b"}},
		"host":             {[]string{"a", "a.example:8788", "127.0.0.1", "[::1]:8788", "[::1]"}, []string{"", "http://a", "a/b", "a:", "-a", "a b"}},
		"containerd":       {[]string{"", "private", "/run/x.sock"}, []string{"unix:///run/x.sock", "x"}},
		"namespace":        {[]string{"a", "a-b.c_d"}, []string{"", "moby", "k8s.io", "a--b", "-a", "a/b", strings.Repeat("a", 77)}},
		"name":             {[]string{"overlayfs"}, []string{"", "a b"}},
		"runtime":          {[]string{"io.containerd.runc.v2", "io.containerd.runsc.v1", "io.containerd.kata-qemu.v2"}, []string{"", "runc", "/usr/bin/runc", "io.containerd.runc"}},
		"optional program": {[]string{"", "crun", "/usr/bin/crun"}, []string{"bin/crun", "-x", "a b"}},
		"image":            {[]string{"a", "a:latest", "a/b-c:1.2", "localhost:5000/a:b", "reg.example/a/b@sha256:" + strings.Repeat("0", 64)}, []string{"", "A", "a:", "a b", "a@sha256:0", "-a"}},
		"cgroup":           {[]string{"/a", "/a/b"}, []string{"", "/", "a", "/../a"}},
	} {
		for _, s := range tt.good {
			if !checks[name].ok(s) {
				t.Errorf("%s: %q is refused", name, s)
			}
		}
		for _, s := range tt.bad {
			if checks[name].ok(s) {
				t.Errorf("%s: %q is accepted", name, s)
			}
		}
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[string]Size{"0": 0, "1": 1, "64k": 64 << 10, "512m": 512 << 20, "1g": 1 << 30, "2G": 2 << 30, "1025": 1025, "8589934591g": 8589934591 << 30} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q, which reads as %d, %v", in, got, again, err)
		}
	}
	for _, in := range []string{"", "g", "-1", "1.5g", "1gb", "1 g", "1t", "+1", "8589934592g", "99999999999999999999", "1_000"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a named file that is missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("pool.bash = 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path)
	if err != nil || cfg.Pool.Bash != 3 || cfg.File != path {
		t.Errorf("Load = %+v, %v", cfg, err)
	}
}

func TestKeys(t *testing.T) {
	byName := map[string]Key{}
	for _, key := range Keys() {
		byName[key.Name] = key
	}
	for _, want := range []Key{
		{"http_addr", `":8788"`, `host:port or :port, such as "127.0.0.1:8788"`},
		{"allowed_hosts", `[]`, `a list of: a host name or address with or without a port, such as "sandbox.example.org"`},
		{"sandbox.memory_limit", `"1g"`, `32m to 1024g`},
		{"sandbox.cpu_limit", `"1"`, `0.05 to 256`},
		{"sandbox.user_namespace", `true`, `true or false`},
		{"queue.max_waiting", `32`, `0 to 10000`},
	} {
		if got := byName[want.Name]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	// Each default reads as the value it stands for.
	for _, key := range Keys() {
		cfg, err := parse("c.toml", key.Name+" = "+key.Default)
		cfg.File = ""
		if err != nil || !reflect.DeepEqual(cfg, Default()) {
			t.Errorf("%s = %s: %v", key.Name, key.Default, err)
		}
	}
}

// Whatever a file holds, Load answers with a valid Config or with faults that
// each stand on one line and point into the file.
func FuzzLoad(f *testing.F) {
	dist, err := os.ReadFile("config.toml.dist")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(dist))
	for _, seed := range []string{
		"", "=", "[sandbox]\npids_limit = 0", "sandbox = 1", "[[pool]]", "a.b.c = {d = [1, {e = 2}]}",
		"http_addr = \"\"\"\nx\"\"\"", "sandbox.cpu_limit = inf", "\"\\n\" = 1", "[queue]\n\"\" = 1", "max_connections = 1979-05-27",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data string) {
		cfg, err := parse("c.toml", data)
		if err == nil {
			if err := cfg.Validate(); err != nil {
				t.Errorf("Load accepts what Validate refuses: %v", err)
			}
			return
		}
		faults := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			faults = joined.Unwrap()
		}
		for _, err := range faults {
			fault, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("not an *Error: %v", err)
			}
			// toml has no position for the empty key.
			if fault.Line == 0 && strings.Contains(fault.Key, `""`) {
				continue
			}
			if lines := 1 + strings.Count(data, "\n"); fault.Line < 1 || fault.Line > lines {
				t.Errorf("line %d of %d: %v", fault.Line, lines, err)
			}
			if strings.ContainsAny(err.Error(), "\n\r") || fault.Problem == "" {
				t.Errorf("not one line: %q", err)
			}
		}
	})
}
