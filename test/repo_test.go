// Package test holds the rules of the repository itself: which package may
// import which and why, what no tracked file contains, and that README.md says
// what the code does. The folders below hold the tests that need more than one
// package: integration, escape, faults, conformance, bench, host.
package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"code-execution-sandbox/config"
)

const module = "code-execution-sandbox"

// layer says what a package's own code may import beside the standard library.
// Its tests may reach further.
type layer struct {
	// packages are those of this module, without the module's name; modules are
	// prefixes of other import paths. "*" is everything.
	packages, modules []string
	// why is the reason for the limit, for whoever runs into it.
	why string
}

var (
	containerd = []string{
		"github.com/containerd/containerd", "github.com/containerd/errdefs",
		"github.com/containerd/platforms", "github.com/containerd/typeurl",
	}
	sys = "golang.org/x/sys/unix"
)

// layers are the arrows of the house, which point down: a new package stands
// here before it is used.
var layers = map[string]layer{
	"cmd/code-execution-sandbox": {
		packages: []string{"*"}, modules: []string{"*"},
		why: "it wires everything, and nothing else may",
	},
	"internal/httpserver": {
		packages: []string{"internal/mcpserver", "internal/observe", "internal/sandbox"},
		modules:  []string{"github.com/prometheus/client_golang", "github.com/modelcontextprotocol/go-sdk", "golang.org/x/net", "golang.org/x/time"},
		why:      "the servers see sandbox.Executor and not the runner, so that they can be tested without a host; cmd maps the configuration to options",
	},
	"internal/mcpserver": {
		packages: []string{"internal/sandbox"},
		modules:  []string{"github.com/modelcontextprotocol/go-sdk", sys},
		why:      "the tool sees sandbox.Executor and not the runner, so that it can be tested without a host; httpserver carries it, not the other way round",
	},
	"internal/observe": {
		packages: []string{"internal/sandbox"},
		modules:  []string{"github.com/prometheus/client_golang"},
		why:      "it records what passes a sandbox.Executor, whoever that is",
	},
	"internal/runner": {
		packages: []string{"image", "oci", "internal/admit", "internal/capture", "internal/cgroup", "internal/daemon", "internal/sandbox"},
		modules:  append([]string{"github.com/opencontainers/runtime-spec", sys}, containerd...),
		why:      "the runner does not know who asks, nor of the configuration, which cmd maps to options",
	},
	"image": {
		packages: []string{"internal/sandbox"},
		modules:  append([]string{"github.com/distribution/reference", "github.com/opencontainers/go-digest", "github.com/opencontainers/image-spec", sys}, containerd...),
		why:      "the runner stands on image, not the other way round",
	},
	"internal/daemon": {
		packages: []string{"internal/sandbox"},
		modules:  append([]string{sys}, containerd...),
		why:      "a daemon is there before any image or runner",
	},
	"internal/daemon/daemontest": {
		packages: []string{"internal/daemon"},
		modules:  append([]string{sys}, containerd...),
		why:      "it only lends tests a daemon",
	},
	"oci": {
		modules: []string{"github.com/opencontainers/runtime-spec"},
		why:     "the specification is a pure function of its parameters, so that golden files can show it whole",
	},
	"config":                {modules: []string{"github.com/BurntSushi/toml"}, why: "it only reads a file; cmd maps it to options"},
	"internal/cgroup":       {modules: []string{sys}, why: "it reads and writes files of the kernel and knows nothing of runs"},
	"internal/clientconfig": {why: "it only writes text"},
	"internal/advisory":     {modules: []string{"github.com/BurntSushi/toml", sys}, why: "it is knowledge of versions and knows nothing of sandboxes"},
	"internal/protection":   {why: "it looks at files of the kernel; cmd maps what it finds to options"},
	"internal/admit":        {why: "slots and queue are logic alone, tested without time or host"},
	"internal/capture":      {why: "bounded output is logic alone, tested without a pipe"},
	"internal/sandbox":      {why: "it is the contract that every other package sees, so it sees none"},
}

// pkg is the part of `go list -json` that the rules look at.
type pkg struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

// isTest reports whether path is a package of tests, which may import anything.
func isTest(path string) bool { return path == "test" || strings.HasPrefix(path, "test/") }

// breaches lists what in the import graph is against layers.
func breaches(graph []pkg, layers map[string]layer) []string {
	var found []string
	seen := map[string]bool{}
	for _, p := range graph {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		seen[from] = true
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if to, ours := strings.CutPrefix(imported, module+"/"); ours && to != from && strings.HasPrefix(to, "cmd/") {
				found = append(found, fmt.Sprintf("%s imports %s: nothing imports cmd, which only wires", from, to))
			}
		}
		if isTest(from) {
			continue
		}
		rule, known := layers[from]
		if !known {
			found = append(found, fmt.Sprintf("%s is new: say in layers what it may import, and why", from))
			continue
		}
		for _, imported := range p.Imports {
			if imported == "C" {
				found = append(found, fmt.Sprintf("%s imports C: the binary is static", from))
				continue
			}
			to, ours := strings.CutPrefix(imported, module+"/")
			first, _, _ := strings.Cut(imported, "/")
			switch {
			case ours && strings.HasPrefix(to, "cmd/"): // said above
			case ours && (isTest(to) || strings.HasSuffix(to, "test")) && from != to:
				found = append(found, fmt.Sprintf("%s imports %s: only tests import what is for tests", from, to))
			case ours && !allows(rule.packages, to, false):
				found = append(found, fmt.Sprintf("%s imports %s: %s; allowed are %q", from, to, rule.why, rule.packages))
			case !ours && strings.Contains(first, ".") && !allows(rule.modules, imported, true):
				found = append(found, fmt.Sprintf("%s imports %s: %s; allowed are %q", from, imported, rule.why, rule.modules))
			}
		}
	}
	for path := range layers {
		if !seen[path] {
			found = append(found, fmt.Sprintf("layers lists %s, which does not exist", path))
		}
	}
	slices.Sort(found)
	return found
}

func allows(list []string, path string, below bool) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == "*" || entry == path || below && strings.HasPrefix(path, entry+"/")
	})
}

func TestImports(t *testing.T) {
	for _, breach := range breaches(goList(t), layers) {
		t.Error(breach)
	}
}

// The checker finds each kind of breach, one at a time, in a graph without any.
func TestImportsChecker(t *testing.T) {
	rules := map[string]layer{
		"cmd/x":   {packages: []string{"*"}, modules: []string{"*"}},
		"front":   {packages: []string{"leaf"}, modules: []string{"example.org/a"}, why: "the front knows the leaf alone"},
		"leaf":    {why: "the leaf knows nobody"},
		"frttest": {packages: []string{"leaf"}},
	}
	graph := func() map[string]*pkg {
		return map[string]*pkg{
			"cmd/x":   {Imports: []string{"fmt", module + "/front", module + "/leaf", "example.net/any"}},
			"front":   {Imports: []string{"net/http", module + "/leaf", "example.org/a", "example.org/a/v2/b"}, TestImports: []string{"example.net/any", module + "/frttest"}},
			"leaf":    {Imports: []string{"strings"}, XTestImports: []string{module + "/leaf"}},
			"frttest": {Imports: []string{"testing", module + "/leaf"}},
			"test":    {TestImports: []string{module + "/front", "example.net/any"}},
		}
	}
	check := func(g map[string]*pkg) []string {
		var list []pkg
		for path, p := range g {
			p.ImportPath = module + "/" + path
			list = append(list, *p)
		}
		return breaches(list, rules)
	}
	if got := check(graph()); len(got) > 0 {
		t.Fatalf("a graph without a breach: %q", got)
	}

	for name, tt := range map[string]struct {
		damage func(map[string]*pkg)
		want   string
	}{
		"upwards":       {func(g map[string]*pkg) { add(g["leaf"], module+"/front") }, `leaf imports front: the leaf knows nobody; allowed are []`},
		"other module":  {func(g map[string]*pkg) { add(g["front"], "example.org/ab") }, `front imports example.org/ab: the front knows the leaf alone; allowed are ["example.org/a"]`},
		"any module":    {func(g map[string]*pkg) { add(g["leaf"], "example.org/a") }, `leaf imports example.org/a: the leaf knows nobody; allowed are []`},
		"cmd":           {func(g map[string]*pkg) { add(g["front"], module+"/cmd/x") }, `front imports cmd/x: nothing imports cmd, which only wires`},
		"cmd in a test": {func(g map[string]*pkg) { g["test"].XTestImports = []string{module + "/cmd/x"} }, `test imports cmd/x: nothing imports cmd, which only wires`},
		"test code":     {func(g map[string]*pkg) { add(g["cmd/x"], module+"/frttest") }, `cmd/x imports frttest: only tests import what is for tests`},
		"cgo":           {func(g map[string]*pkg) { add(g["leaf"], "C") }, `leaf imports C: the binary is static`},
		"new package":   {func(g map[string]*pkg) { g["fresh"] = &pkg{} }, `fresh is new: say in layers what it may import, and why`},
		"gone package":  {func(g map[string]*pkg) { delete(g, "leaf") }, `layers lists leaf, which does not exist`},
	} {
		g := graph()
		tt.damage(g)
		if got := check(g); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func add(p *pkg, imported string) { p.Imports = append(p.Imports, imported) }

// vague are the names under which a package becomes a heap.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "lib", "shared"}

func TestPackages(t *testing.T) {
	for _, p := range goList(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if p.ImportPath == module {
			t.Errorf("Go files in the root: %q", p.GoFiles)
		}
		if slices.Contains(vague, filepath.Base(path)) {
			t.Errorf("%s: name a package by what it provides", path)
		}

		files := p.GoFiles
		if len(files) == 0 {
			files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		var with []string
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if file.Doc != nil {
				with = append(with, name)
			}
		}
		if len(files) > 0 && len(with) != 1 {
			t.Errorf("%s has %d package comments, want one: %q", path, len(with), with)
		}
	}
}

func TestModule(t *testing.T) {
	var mod struct {
		Module  struct{ Path string }
		Replace []json.RawMessage
	}
	if err := json.Unmarshal(run(t, "go", "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if mod.Module.Path != module {
		t.Errorf("the module is %q, want %q", mod.Module.Path, module)
	}
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod has replace, which `go install` refuses: %s", mod.Replace)
	}
	for _, name := range tracked(t) {
		if !strings.Contains(name, "/") && strings.HasSuffix(name, ".go") {
			t.Errorf("%s: no Go file stands in the root", name)
		}
	}
}

// foreign finds what is true on one machine only. Brackets keep the patterns
// from finding themselves.
var foreign = map[string]*regexp.Regexp{
	"the path of one machine":   regexp.MustCompile(`(^|[^[:alnum:]_./-])[/](work|farm|home/[a-z][a-z0-9_-]*|Users/[A-Za-z]+)[/]`),
	"a package registry's host": regexp.MustCompile(`(proxy|sum)[.]golang[.]org|registry[.]npmjs|pypi[.]org|pythonhosted[.]org|(deb|security|archive|snapshot)[.]debian[.]org|ubuntu[.]com/ubuntu`),
}

func TestTrackedFiles(t *testing.T) {
	root := root(t)
	for _, name := range tracked(t) {
		info, err := os.Stat(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue // deleted and not yet committed, or a link to a directory
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if bytes.IndexByte(data, 0) >= 0 {
			continue // not text
		}
		number := 0
		for line := range bytes.Lines(data) {
			number++
			for what, pattern := range foreign {
				if pattern.Match(line) {
					t.Errorf("%s:%d holds %s: %s", name, number, what, bytes.TrimSpace(line))
				}
			}
			if strings.Count(root, "/") > 1 && bytes.Contains(line, []byte(root+"/")) {
				t.Errorf("%s:%d holds the path of this checkout: %s", name, number, bytes.TrimSpace(line))
			}
		}
	}
}

func TestTrackedFilesChecker(t *testing.T) {
	for _, line := range []string{
		"see /" + "work/x/y", "\"/" + "farm/a\"", "cd /" + "home/ann/src", "(/" + "Users/Ann/src)",
		"GOPROXY=https://proxy." + "golang.org", "http://deb." + "debian.org/debian", "https://registry." + "npmjs.org/x", "https://pypi." + "org/simple",
	} {
		if !slices.ContainsFunc(patterns(), func(p *regexp.Regexp) bool { return p.MatchString(line) }) {
			t.Errorf("%q is not found", line)
		}
	}
	for _, line := range []string{"see test/" + "work/x", "/var/lib/x", "/home", "https://www.debian.org/releases", "docker.io/library/debian"} {
		if slices.ContainsFunc(patterns(), func(p *regexp.Regexp) bool { return p.MatchString(line) }) {
			t.Errorf("%q is found", line)
		}
	}
}

func patterns() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, pattern := range foreign {
		all = append(all, pattern)
	}
	return all
}

// README.md has tables whose head is "key | default | …", with whole keys such
// as `sandbox.pids_limit`, each once, and the default as a file has it.
func TestReadmeConfiguration(t *testing.T) {
	stated := keyTables(read(t, "README.md"))
	if len(stated) == 0 {
		t.Fatal("README.md has no table with the head: | key | default |")
	}
	want := config.Default()
	known := map[string]bool{}
	for _, key := range config.Keys() {
		known[key.Name] = true
		switch values := stated[key.Name]; len(values) {
		case 0:
			t.Errorf("README.md does not list %s, default %s", key.Name, key.Default)
		case 1:
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(key.Name+" = "+values[0]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := config.Load(path)
			got.File = ""
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("README.md says %s = %s, the default is %s (%v)", key.Name, values[0], key.Default, err)
			}
		default:
			t.Errorf("README.md lists %s %d times", key.Name, len(values))
		}
	}
	for name := range stated {
		if !known[name] {
			t.Errorf("README.md lists %s, which is no key", name)
		}
	}
}

var keyTableHead = regexp.MustCompile(`(?i)^\|\s*key\s*\|\s*default\s*\|`)

// keyTables reads the tables of keys in a Markdown text: the defaults by key.
func keyTables(markdown string) map[string][]string {
	stated := map[string][]string{}
	inside := false
	for line := range strings.Lines(markdown) {
		line = strings.TrimSpace(line)
		switch cells := strings.Split(line, "|"); {
		case keyTableHead.MatchString(line):
			inside = true
		case len(cells) < 4 || cells[0] != "":
			inside = false
		case inside && !strings.HasPrefix(strings.TrimSpace(cells[1]), "-"):
			name, value := strings.Trim(cells[1], " `"), strings.Trim(cells[2], " `")
			stated[name] = append(stated[name], value)
		}
	}
	return stated
}

func TestKeyTables(t *testing.T) {
	got := keyTables("x\n\n| Key | Default | Meaning |\n|---|---|---|\n| `a.b` | `\"1g\"` | x |\n| `c` | `[]` | |\n\n| name | other |\n|---|---|\n| `d` | `1` |\n")
	if fmt.Sprint(got) != `map[a.b:["1g"] c:[[]]]` {
		t.Errorf("got %v", got)
	}
}

// Every `make x` that the documents and the check speak of is a target.
func TestMakeTargets(t *testing.T) {
	targets := map[string]bool{}
	for line := range strings.Lines(read(t, "Makefile")) {
		if match := makefileTarget.FindStringSubmatch(line); match != nil {
			targets[match[1]] = true
		}
	}
	for name, text := range map[string]string{
		"README.md": code(read(t, "README.md")),
		"CLAUDE.md": code(read(t, "CLAUDE.md")),
		".ci/run":   read(t, ".ci/run"),
	} {
		for _, target := range makeCalls(text) {
			if !targets[target] {
				t.Errorf("%s speaks of `make %s`, which is no target", name, target)
			}
		}
	}
}

var (
	makefileTarget = regexp.MustCompile(`^([a-z][a-z0-9-]*):([^=]|$)`)
	makeCall       = regexp.MustCompile("(?m)(?:^|[\\s;&|(`])make((?:[ \\t]+[A-Za-z0-9_./=:-]+)+)")
	codeParts      = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
)

// code is the part of a Markdown text that stands in code blocks and spans.
func code(markdown string) string { return strings.Join(codeParts.FindAllString(markdown, -1), "\n") }

// makeCalls lists the targets that calls of make in text name.
func makeCalls(text string) []string {
	var targets []string
	for _, match := range makeCall.FindAllStringSubmatch(text, -1) {
		for word := range strings.FieldsSeq(match[1]) {
			if !strings.ContainsAny(word, "=./:") && !strings.HasPrefix(word, "-") {
				targets = append(targets, word)
			}
		}
	}
	return targets
}

func TestMakeCalls(t *testing.T) {
	markdown := "Let us make things: `make run`, or\n```sh\nsudo make -j2 setup check FORCE=1   # make\ncd x && make image\n```\nand `cmake nothing`.\n"
	if got := makeCalls(code(markdown)); fmt.Sprint(got) != "[run setup check image]" {
		t.Errorf("got %v", got)
	}
}

func goList(t *testing.T) []pkg {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(run(t, "go", "list", "-e", "-json", "./...")))
	var list []pkg
	for {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// tracked lists the files that are, or would be, under version control.
func tracked(t *testing.T) []string {
	t.Helper()
	out := run(t, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
