package config

import (
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// check is a rule for a string.
type check struct {
	allowed string
	ok      func(string) bool
}

// identifier is containerd's rule for names (its pkg/identifiers), whose length
// ends at 76.
var identifier = regexp.MustCompile(`^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$`)

// checks are the rules that the tag "is" names.
var checks = map[string]check{
	"address": {`host:port or :port, such as "127.0.0.1:8788"`, func(s string) bool {
		_, port, err := net.SplitHostPort(s)
		if err != nil {
			return false
		}
		_, err = strconv.ParseUint(port, 10, 16)
		return err == nil
	}},
	// Capitals only: a token put here by mistake is then refused, where it would
	// else appear in the error that no variable of that name is set.
	"variable": {`the name of an environment variable in capitals, such as "SANDBOX_MCP_TOKEN", or "" for none`,
		match(`^([A-Z_][A-Z0-9_]{0,63})?$`)},
	"path":          {"an absolute path in its shortest form, other than /", isPath},
	"optional path": {`an absolute path in its shortest form, or "" for none`, func(s string) bool { return s == "" || isPath(s) }},
	// A socket's path ends at 107 bytes (unix(7)), and what stands in the
	// directory needs the rest.
	"short path": {"an absolute path in its shortest form, of at most 64 bytes, other than /", func(s string) bool { return isPath(s) && len(s) <= 64 }},
	"origin": {`an origin, scheme://host or scheme://host:port, such as "https://chat.example.org"`, func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && u.Host != "" && u.Scheme+"://"+u.Host == s && !strings.Contains(s, "*")
	}},
	"host": {`a host name or address with or without a port, such as "sandbox.example.org"`,
		match(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)},
	"containerd": {`the absolute path of a socket, "private", or "" to look for one`, func(s string) bool { return s == "" || s == Private || isPath(s) }},
	// Docker and the kubelet remove what they do not know in their namespaces.
	"namespace": {"letters and digits joined by . _ or -, 76 at most, and neither moby nor k8s.io", func(s string) bool {
		return isName(s) && s != "moby" && s != "k8s.io"
	}},
	"name":    {"letters and digits joined by . _ or -, 76 at most", isName},
	"runtime": {`the name of a shim, such as "io.containerd.runc.v2"`, match(`^[a-z0-9]+(\.[a-z0-9_-]+)*\.v[0-9]+$`)},
	"optional program": {`a program's name, its absolute path, or "" for the default`, func(s string) bool {
		return s == "" || isPath(s) || match(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)(s)
	}},
	"image": {`an image's name, such as "name:tag" or "registry.example.org/name@sha256:…"`,
		match(`^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)},
	"optional profile": {`the name of a loaded AppArmor profile, or "" for none`, match(`^([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?$`)},
	"module":           {`a Python module, such as "numpy" or "matplotlib.pyplot"`, match(`^[A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63})*$`)},
	"cgroup":           {`a cgroup's path below the root, such as "/code-execution-sandbox"`, isPath},
}

func match(pattern string) func(string) bool { return regexp.MustCompile(pattern).MatchString }

func isName(s string) bool { return len(s) <= 76 && identifier.MatchString(s) }

func isPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && s != "/" && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// allowed says in words which values the field takes.
func (f field) allowed() string {
	switch {
	case f.tag.Get("range") != "":
		low, high, _ := f.bounds()
		return low + " to " + high
	case f.tag.Get("oneof") != "":
		return f.many(`"` + strings.ReplaceAll(f.tag.Get("oneof"), "|", `", "`) + `"`)
	case f.tag.Get("is") != "":
		return f.many(checks[f.tag.Get("is")].allowed)
	default:
		return "true or false"
	}
}

func (f field) many(one string) string {
	if f.value.Kind() == reflect.Slice {
		return "a list of: " + one
	}
	return one
}

// Validate reports, as joined *Error values, every value out of range and every
// pair of values that do not fit together.
func (c Config) Validate() error {
	var fs faults
	fs.bad = map[string]bool{}
	c.validate(&fs)
	return fs.join()
}

func (c *Config) validate(fs *faults) {
	for _, f := range c.fields() {
		if !fs.bad[f.key] {
			f.validate(fs)
		}
	}

	s := &c.Sandbox
	if s.DefaultTimeout > s.MaxTimeout {
		fs.across([]string{"sandbox.default_timeout_seconds", "sandbox.max_timeout_seconds"},
			"%d is more than sandbox.max_timeout_seconds, which is %d", s.DefaultTimeout, s.MaxTimeout)
	}
	// Full file systems must end in ENOSPC, which a program understands, and not
	// in the out-of-memory killer.
	if s.TmpfsSize+s.ShmSize >= s.MemoryLimit {
		fs.across([]string{"sandbox.tmpfs_size", "sandbox.shm_size", "sandbox.memory_limit"},
			"%s and sandbox.shm_size %s are not less together than sandbox.memory_limit, which is %s and pays for both",
			s.TmpfsSize, s.ShmSize, s.MemoryLimit)
	}
	if s.MaxCodeBytes >= s.TmpfsSize {
		fs.across([]string{"sandbox.max_code_bytes", "sandbox.tmpfs_size"},
			"%s is not less than sandbox.tmpfs_size, which is %s and holds the program", s.MaxCodeBytes, s.TmpfsSize)
	}
	if c.DataDir == c.RunDir {
		fs.across([]string{"data_dir", "run_dir"}, "%q is run_dir too, use another directory", c.DataDir)
	}
	// Besides those that run and those that stand prepared, as many as run can
	// be on their way out. The highest range stays free: its last id, 2^32-1,
	// means "no id".
	const all, each = 1 << 32, 1 << 16
	sandboxes := int64(2*s.MaxConcurrent + c.Pool.Python + c.Pool.Bash)
	if s.UIDBase+sandboxes*each > all-each {
		fs.across([]string{"sandbox.uid_base", "sandbox.max_concurrent", "pool.python", "pool.bash"},
			"%d leaves no room below 2^32 for %d times %d ids (2 x sandbox.max_concurrent + pool.python + pool.bash), allowed is up to %d",
			s.UIDBase, sandboxes, each, all-(sandboxes+1)*each)
	}
	if s.UIDBase%each != 0 && !fs.bad["sandbox.uid_base"] {
		fs.add("sandbox.uid_base", "%d is not a multiple of %d", s.UIDBase, each)
	}
}

// validate checks the field by itself.
func (f field) validate(fs *faults) {
	var strs []string
	switch v := f.value.Interface().(type) {
	case string:
		strs = []string{v}
	case []string:
		strs = v
	case bool:
	default:
		if low, high, inside := f.bounds(); !inside(f.number()) {
			fs.add(f.key, "%s is out of range, allowed is %s to %s", strings.Trim(literal(f.value), `"`), low, high)
		}
	}

	for i, s := range strs {
		ok := false
		if alternatives := f.tag.Get("oneof"); alternatives != "" {
			ok = slices.Contains(strings.Split(alternatives, "|"), s)
		} else {
			ok = checks[f.tag.Get("is")].ok(s)
		}
		if !ok {
			fs.add(f.key, "%s is not allowed, allowed is %s", f.shown(quote(s)), f.allowed())
		} else if slices.Contains(strs[:i], s) {
			fs.add(f.key, "%s stands twice", quote(s))
		}
	}
}

// Key describes one key for people, and for the test that holds the README's
// table to it.
type Key struct {
	// Name is the whole key, such as sandbox.pids_limit.
	Name string
	// Default is written as in the file.
	Default string
	// Allowed says which values the key takes.
	Allowed string
}

// Keys lists every key in the order of config.toml.dist.
func Keys() []Key {
	cfg := Default()
	var keys []Key
	for _, f := range cfg.fields() {
		keys = append(keys, Key{f.key, literal(f.value), f.allowed()})
	}
	return keys
}
