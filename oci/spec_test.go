package oci

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the golden files anew")

// params are those of the configuration's defaults.
func params() Params {
	return Params{
		Arch:          AMD64,
		Language:      "python",
		UserNamespace: &IDRange{HostID: 1 << 20, Size: 1 << 16},
		CgroupVersion: 2,
		CgroupsPath:   "/code-execution-sandbox/example",
		Memory:        1 << 30,
		CPUs:          1,
		PIDs:          128,
		Tmp:           64 << 20, TmpInodes: 16 << 10,
		Shm: 16 << 20, ShmInodes: 1024,
		MaxRuntime: time.Minute,
	}
}

func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; if that is meant, run go test ./oci -update and read the diff\n%s", file, got)
	}
}

func TestGolden(t *testing.T) {
	spec := func(change func(*Params)) *specs.Spec {
		p := params()
		change(&p)
		s, err := Spec(p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	golden(t, "cgroup2.json", spec(func(*Params) {}))
	// A host with nothing to offer: cgroup v1, no user namespace.
	golden(t, "cgroup1.json", spec(func(p *Params) {
		p.Language, p.CgroupVersion, p.UserNamespace, p.CPUs = "bash", 1, nil, 2.5
	}))
	if got := spec(func(p *Params) { p.SecondKernel = true }).Annotations; len(got) != 1 || got["io.kubernetes.cri.container-type"] != "sandbox" {
		t.Errorf("annotations for gVisor: %v", got)
	}
	golden(t, "seccomp-arm64.json", spec(func(p *Params) { p.Arch = ARM64 }).Linux.Seccomp)
}

func TestParamsRefused(t *testing.T) {
	for _, tt := range []struct {
		field  string
		change func(*Params)
	}{
		{"Arch", func(p *Params) { p.Arch = "" }},
		{"Arch", func(p *Params) { p.Arch = "386" }},
		{"Language", func(p *Params) { p.Language = "" }},
		{"Language", func(p *Params) { p.Language = "ruby" }},
		{"RootPath", func(p *Params) { p.RootPath = "/" }},
		{"RootPath", func(p *Params) { p.RootPath = "/x/.." }},
		{"RootPath", func(p *Params) { p.RootPath = "a\x00b" }},
		{"UserNamespace", func(p *Params) { p.UserNamespace.Size = 0 }},
		{"UserNamespace", func(p *Params) { p.UserNamespace.HostID = 0 }},
		{"UserNamespace", func(p *Params) { p.UserNamespace.Size = 1000 }},
		{"UserNamespace", func(p *Params) { p.UserNamespace.HostID = math.MaxUint32 - 0xffff }},
		{"CgroupVersion", func(p *Params) { p.CgroupVersion = 0 }},
		{"CgroupVersion", func(p *Params) { p.CgroupVersion = 3 }},
		{"CgroupsPath", func(p *Params) { p.CgroupsPath = "" }},
		{"CgroupsPath", func(p *Params) { p.CgroupsPath = "/" }},
		{"CgroupsPath", func(p *Params) { p.CgroupsPath = "./" }},
		{"CgroupsPath", func(p *Params) { p.CgroupsPath = "/a/../../b" }},
		{"Memory", func(p *Params) { p.Memory = 0 }},
		{"Memory", func(p *Params) { p.Memory = -1 }},
		{"Memory", func(p *Params) { p.Memory = MinMemory - 1 }},
		{"CPUs", func(p *Params) { p.CPUs = 0 }},
		{"CPUs", func(p *Params) { p.CPUs = -1 }},
		{"CPUs", func(p *Params) { p.CPUs = 0.009 }},
		{"CPUs", func(p *Params) { p.CPUs = math.NaN() }},
		{"CPUs", func(p *Params) { p.CPUs = math.Inf(1) }},
		{"PIDs", func(p *Params) { p.PIDs = 0 }},
		{"PIDs", func(p *Params) { p.PIDs = -1 }},
		{"PIDs", func(p *Params) { p.PIDs = MinPIDs - 1 }},
		{"Tmp", func(p *Params) { p.Tmp = 0 }},
		{"Shm", func(p *Params) { p.Shm = -1 }},
		{"TmpInodes", func(p *Params) { p.TmpInodes = 0 }},
		{"ShmInodes", func(p *Params) { p.ShmInodes = 0 }},
		{"MaxRuntime", func(p *Params) { p.MaxRuntime = 0 }},
		{"Preload", func(p *Params) { p.Preload = []string{"numpy", "a b"} }},
		{"Preload", func(p *Params) { p.Preload = []string{""} }},
		{"Preload", func(p *Params) { p.Preload = []string{"a,b"} }},
		{"Preload", func(p *Params) { p.Preload = []string{strings.Repeat("a", 4001)} }},
	} {
		p := params()
		tt.change(&p)
		s, err := Spec(p)
		if s != nil || err == nil {
			t.Errorf("%s: accepted %+v", tt.field, p)
			continue
		}
		if lines := strings.Split(err.Error(), "\n"); len(lines) != 1 || !strings.HasPrefix(lines[0], "oci spec: "+tt.field+": ") {
			t.Errorf("%s: the error does not name it alone: %v", tt.field, err)
		}
	}
}

func TestParamsRefusedAllAtOnce(t *testing.T) {
	_, err := Spec(Params{})
	if err == nil {
		t.Fatal("accepted the zero Params")
	}
	kind := reflect.TypeFor[Params]()
	for field := range kind.Fields() {
		switch name := field.Name; name {
		case "RootPath", "UserNamespace", "AppArmorProfile", "NoSwapLimit", "RelayedStreams", "Preload", "SecondKernel": // zero has a meaning
		default:
			if !strings.Contains(err.Error(), name+": ") {
				t.Errorf("the zero %s is not refused: %v", name, err)
			}
		}
	}
}

func TestParamsAccepted(t *testing.T) {
	for name, change := range map[string]func(*Params){
		"systemd cgroup":   func(p *Params) { p.CgroupsPath = "sandbox.slice:ces:example" },
		"absolute root":    func(p *Params) { p.RootPath = "/var/lib/example/rootfs" },
		"least ids":        func(p *Params) { p.UserNamespace = &IDRange{HostID: 1, Size: 1001} },
		"highest ids":      func(p *Params) { p.UserNamespace = &IDRange{HostID: math.MaxUint32 - 1<<16, Size: 1 << 16} },
		"least processor":  func(p *Params) { p.CPUs = 0.01 },
		"many processors":  func(p *Params) { p.CPUs = 128 },
		"least memory":     func(p *Params) { p.Memory = MinMemory },
		"least processes":  func(p *Params) { p.PIDs = MinPIDs },
		"AppArmor profile": func(p *Params) { p.AppArmorProfile = "example" },
		"no swap limit":    func(p *Params) { p.NoSwapLimit = true },
		"modules":          func(p *Params) { p.Preload = []string{"numpy", "matplotlib.pyplot"} },
	} {
		p := params()
		change(&p)
		if _, err := Spec(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDerived covers what is computed rather than copied.
func TestDerived(t *testing.T) {
	for _, tt := range []struct {
		cpus    float64
		runtime time.Duration
		quota   int64
		soft    uint64
		threads int
	}{
		{1, time.Minute, 100_000, 61, 1},
		{0.5, time.Minute, 50_000, 31, 1},
		{2.5, 3 * time.Second, 250_000, 9, 3},
		{0.01, time.Second, 1000, 2, 1},
		{1, 1500 * time.Millisecond, 100_000, 3, 1},
	} {
		p := params()
		p.CPUs, p.MaxRuntime = tt.cpus, tt.runtime
		s, err := Spec(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := *s.Linux.Resources.CPU.Quota; got != tt.quota {
			t.Errorf("%v CPUs: quota %d, want %d", tt.cpus, got, tt.quota)
		}
		for _, r := range s.Process.Rlimits {
			if want := (specs.POSIXRlimit{Type: "RLIMIT_CPU", Soft: tt.soft, Hard: tt.soft + 1}); r.Type == want.Type && r != want {
				t.Errorf("%v CPUs for %v: %+v, want %+v", tt.cpus, tt.runtime, r, want)
			}
		}
		if want := "OMP_NUM_THREADS=" + strconv.Itoa(tt.threads); !strings.Contains(strings.Join(s.Process.Env, " "), want) {
			t.Errorf("%v CPUs: no %s in %v", tt.cpus, want, s.Process.Env)
		}
	}
}

func TestSwap(t *testing.T) {
	p := params()
	for _, none := range []bool{false, true} {
		p.NoSwapLimit = none
		s, err := Spec(p)
		if err != nil {
			t.Fatal(err)
		}
		if m := s.Linux.Resources.Memory; *m.Limit != p.Memory || (m.Swap == nil) != none || !none && *m.Swap != p.Memory {
			t.Errorf("NoSwapLimit %t: %+v", none, m)
		}
	}
}

// TestInvariants holds what must be true of every specification, whatever a
// golden file says.
func TestInvariants(t *testing.T) {
	for _, cgroup := range []int{1, 2} {
		for _, ids := range []*IDRange{nil, {HostID: 1 << 20, Size: 1 << 16}} {
			p := params()
			p.CgroupVersion, p.UserNamespace = cgroup, ids
			s, err := Spec(p)
			if err != nil {
				t.Fatal(err)
			}
			if !s.Root.Readonly || !s.Process.NoNewPrivileges || s.Process.Terminal || s.Process.User.UID == 0 || s.Process.User.GID == 0 {
				t.Errorf("weak process or root: %+v, %+v", s.Root, s.Process)
			}
			if caps := *s.Process.Capabilities; !reflect.DeepEqual(caps, specs.LinuxCapabilities{
				Bounding: []string{}, Effective: []string{}, Inheritable: []string{}, Permitted: []string{}, Ambient: []string{},
			}) {
				t.Errorf("capabilities: %+v", caps)
			}
			namespaces := map[specs.LinuxNamespaceType]bool{}
			for _, n := range s.Linux.Namespaces {
				if n.Path != "" || namespaces[n.Type] {
					t.Errorf("namespace joined or named twice: %+v", n)
				}
				namespaces[n.Type] = true
			}
			if want := 6; ids != nil && len(namespaces) != want+1 || ids == nil && len(namespaces) != want {
				t.Errorf("namespaces: %v", namespaces)
			}
			for _, m := range s.Mounts {
				options := strings.Join(m.Options, ",") + ","
				for _, want := range []string{"nosuid,", "noexec,"} {
					if !strings.Contains(options, want) {
						t.Errorf("mount without %s %+v", want, m)
					}
				}
				if m.Type != "proc" && m.Type != "tmpfs" {
					t.Errorf("mount of something that is not made for the sandbox: %+v", m)
				}
				if m.Type == "tmpfs" && (!strings.Contains(options, "size=") || !strings.Contains(options, "nr_inodes=")) {
					t.Errorf("mount without a limit: %+v", m)
				}
			}
			seen := map[string]bool{}
			for _, r := range s.Process.Rlimits {
				if r.Soft > r.Hard || seen[r.Type] {
					t.Errorf("rlimit: %+v", r)
				}
				seen[r.Type] = true
			}
			if unified := s.Linux.Resources.Unified; (unified != nil) != (cgroup == 2) {
				t.Errorf("cgroup v%d: unified %v", cgroup, unified)
			}
			if *s.Linux.Resources.Memory.Swap != *s.Linux.Resources.Memory.Limit {
				t.Error("swap allowed")
			}
			if s.Hooks != nil || s.Annotations != nil {
				t.Errorf("hooks %v, annotations %v", s.Hooks, s.Annotations)
			}
		}
	}
}

// TestSpecsAreIndependent: whoever changes one specification must not change
// the next.
func TestSpecsAreIndependent(t *testing.T) {
	first, err := Spec(params())
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	scribble(reflect.ValueOf(first))
	second, err := Spec(params())
	if err != nil {
		t.Fatal(err)
	}
	after, err := json.Marshal(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("a second specification differs from the first:\n%s\n%s", before, after)
	}
}

// scribble overwrites every string and number that it can reach.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			scribble(field)
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Map:
		v.Clear()
	case reflect.String:
		v.SetString("scribble")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	}
}

// TestPure holds the package to what can be computed from Params: nothing that
// reads the host, a file or a clock.
func TestPure(t *testing.T) {
	pure := map[string]bool{
		"errors": true, "fmt": true, "math": true, "path": true, "regexp": true, "slices": true, "strconv": true, "strings": true, "time": true,
		"github.com/opencontainers/runtime-spec/specs-go": true,
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		checked++
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range file.Imports {
			if p, _ := strconv.Unquote(imported.Path.Value); !pure[p] {
				t.Errorf("%s imports %s: the specification would depend on more than Params", name, p)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "time" && call.Sel.Name != "Duration" {
				t.Errorf("%s uses time.%s: the specification would depend on a clock", name, call.Sel.Name)
			}
			return true
		})
	}
	if checked == 0 {
		t.Error("no file checked")
	}
}
