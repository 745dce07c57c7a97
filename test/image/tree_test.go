package image

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"

	"code-execution-sandbox/test/harness"
)

// withTree calls look with the directory under which the image is mounted.
func withTree(t *testing.T, look func(root string)) {
	t.Helper()
	ctx := t.Context()
	store := harness.Client().SnapshotService("overlayfs")
	mounts, err := store.View(ctx, "image-tree", served(t).ChainID,
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "test"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Remove(ctx, "image-tree"); err != nil {
			t.Error(err)
		}
	}()
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		look(root)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// walk calls visit for every regular file of a tree.
func walk(t *testing.T, root string, visit func(path, name string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			visit(path, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// secrets are what must be in no file. A pattern is looked for only where one of
// its hints is, which is quick.
var secrets = []struct {
	what    string
	hints   []string
	pattern *regexp.Regexp
	// published are the files whose source anybody can read it in.
	published *regexp.Regexp
}{
	// GnuTLS tests itself with a key that is in its source.
	{"a private key", []string{"PRIVATE KEY-----"}, regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n(?:[A-Za-z0-9+/=]{60,76}\r?\n){4}`), regexp.MustCompile(`/libgnutls\.so`)},
	{"an access key", []string{"AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "hf_", "xox"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bhf_[A-Za-z0-9]{34}\b|\bxox[abp]-[0-9]{10}`), nil},
	// urllib3 explains addresses with an example.
	{"credentials in an address", []string{"http://", "https://"}, regexp.MustCompile(`https?://[a-zA-Z0-9._-]+:[a-zA-Z0-9._%-]{8,}@[a-z0-9.-]+\.[a-z]{2,}`), regexp.MustCompile(`/urllib3/util/(__pycache__/)?url\.[^/]*$`)},
	{"a path of the build", []string{"/rootfs/"}, regexp.MustCompile(`/rootfs/(?:usr|etc|lib|var)/`), nil},
}

// The image tells nothing of where it was built, and holds no secret: every
// program can read all of it.
func TestNoSecretsAndNoBuildPaths(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	withTree(t, func(root string) {
		checked := 0
		walk(t, root, func(file, name string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			checked++
			for _, s := range secrets {
				if !slices.ContainsFunc(s.hints, func(hint string) bool { return bytes.Contains(data, []byte(hint)) }) {
					continue
				}
				if published := s.published; published != nil && published.MatchString(name) {
					continue
				}
				if found := s.pattern.Find(data); found != nil {
					t.Errorf("%s: %s: %.60q", name, s.what, found)
				}
			}
			if bytes.Contains(data, []byte(checkout+"/")) {
				t.Errorf("%s: the path of the checkout", name)
			}
			if strings.HasPrefix(name, "/etc/") && len(host) > 3 && bytes.Contains(data, []byte(host)) {
				t.Errorf("%s: the name of the host that built it", name)
			}
		})
		if checked < 5000 {
			t.Errorf("only %d files were looked at", checked)
		}
		for _, absent := range []string{"/root/.*", "/home/*", "/etc/apt/sources.list*", "/etc/apt/apt.conf*", "/etc/apt/apt.conf.d/*proxy*", "/etc/shadow*", "/etc/machine-id", "/src", "/tmp/*", "/var/log/*", "/var/lib/apt/*", "/*/.git", "/usr/bin/pip*"} {
			if found, err := filepath.Glob(root + absent); err != nil || len(found) > 0 {
				t.Errorf("%s is in the image: %v, %v", absent, found, err)
			}
		}
		if data, err := os.ReadFile(root + "/etc/resolv.conf"); err != nil || len(data) > 0 {
			t.Errorf("/etc/resolv.conf: %q, %v", data, err)
		}
	})
}

// An interpreter that may write nowhere finds the byte code of every module,
// and believes it whatever the time of the source is.
func TestByteCodeIsThere(t *testing.T) {
	const uncheckedHash = 1 // flags of PEP 552
	withTree(t, func(root string) {
		checked := 0
		walk(t, root+"/usr", func(path, name string) {
			if !strings.HasSuffix(name, ".py") || !strings.HasPrefix(name, "/lib/python3") && !strings.HasPrefix(name, "/local/lib/python3") {
				return
			}
			base := strings.TrimSuffix(filepath.Base(path), ".py")
			found, err := filepath.Glob(filepath.Join(filepath.Dir(path), "__pycache__", base+".cpython-3*.pyc"))
			if err != nil || len(found) != 1 {
				t.Errorf("%s: byte code: %v, %v", name, found, err)
				return
			}
			file, err := os.Open(found[0])
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			head := make([]byte, 8)
			if _, err := file.Read(head); err != nil || binary.LittleEndian.Uint32(head[4:]) != uncheckedHash {
				t.Errorf("%s: flags % x, %v", found[0], head[4:], err)
			}
			checked++
		})
		if checked < 3000 {
			t.Errorf("only %d modules were found", checked)
		}
	})
}

// The bill of materials names what the image's own package database names, and
// no more.
func TestSBOM(t *testing.T) {
	opts := options(t)
	cmd := exec.CommandContext(t.Context(), harness.Binary(), "image", "status", "--sbom", "--config", harness.Config(t, opts, ""))
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	var bom struct {
		BOMFormat, SpecVersion string
		Components             []struct{ Type, Name, Version, Purl string }
	}
	if err := json.Unmarshal(out, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || bom.SpecVersion != "1.6" {
		t.Errorf("%s %s", bom.BOMFormat, bom.SpecVersion)
	}
	var packages []string
	for _, c := range bom.Components {
		if strings.HasPrefix(c.Purl, "pkg:deb/") {
			packages = append(packages, c.Name+" "+c.Version)
		}
	}
	slices.Sort(packages)
	res := harness.Run(t, harness.Runner(t, opts), harness.Bash(`dpkg-query -W -f '${Package} ${Version}\n'`))
	installed := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	slices.Sort(installed)
	if len(installed) < 300 || !slices.Equal(packages, installed) || len(res.Stderr) > 0 {
		t.Errorf("%d packages in the bill, %d installed: %s\n%s", len(packages), len(installed), strings.Join(packages, ", "), res.Stderr)
	}
	if !strings.Contains(string(out), `"code-execution-sandbox-launcher"`) {
		t.Error("the launcher is not in it")
	}
}

// The model reads the whole of what the image says of itself: its versions are
// those that a program sees.
func TestTheModelIsToldWhatIsThere(t *testing.T) {
	opts := options(t)
	s := harness.Serve(t, opts, "")
	session := s.Connect(t)
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	description, environment := tools.Tools[0].Description, served(t).Environment
	if len(description) >= 2048 || !strings.Contains(description, environment) {
		t.Errorf("%d bytes, without the whole of %q:\n%s", len(description), environment, description)
	}
	res, err := harness.Call(t.Context(), session, map[string]any{"language": "python", "timeout_seconds": 60, "code": `
import importlib.metadata as m, platform, subprocess
print("Python", platform.python_version())
for name in "numpy", "pandas", "matplotlib", "scikit-learn", "pillow": print(name, ".".join(m.version(name).split("+")[0].split(".")[:3]))
print(subprocess.getoutput("git --version").replace(" version", ""))
print(subprocess.getoutput("jq --version").replace("-", " "))
print(*subprocess.getoutput("curl --version").split()[:2])`})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(harness.Text(t, res)), "\n")
	if len(lines) != 11 {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines[2:] {
		if !strings.Contains(description, line) {
			t.Errorf("%q is there, and the model is not told:\n%s", line, environment)
		}
	}
}
