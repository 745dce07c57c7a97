package host

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// variant is another containerd or runtime on the same machine.
type variant struct {
	name string
	// tools are files below the Makefile's directory of tools, for
	// /usr/local/bin; prepare is done before the service is installed.
	tools   []string
	prepare string
	// version is a command, and what it must say then.
	version [2]string
	// containerd are lines for that section of the configuration.
	containerd string
	// gvisor: programs run on gVisor's kernel. unconfined: without AppArmor.
	gvisor, unconfined bool
	// escape is the environment in which the escape suite runs, and rows are those
	// that do; none are all.
	escape, rows string
}

var variants = []variant{
	{
		name:       "Crun",
		prepare:    "apt-get -qq update && apt-get -qq -y install crun >/dev/null && mkdir -p /run/crun",
		containerd: `runtime_binary = "crun"`, version: [2]string{"crun --version | head -n 1", "crun"},
		escape: "CES_RUNTIME_BINARY=crun",
	},
	{
		name:       "GVisor",
		tools:      []string{"gvisor-*/runsc", "gvisor-*/containerd-shim-runsc-v1"},
		containerd: `runtime = "io.containerd.runsc.v1"`, unconfined: true,
		version: [2]string{"runsc --version | head -n 1", "runsc"}, gvisor: true,
		escape: "CES_RUNTIME=io.containerd.runsc.v1",
		// The others load the machine, and were not through in a reasonable time with
		// gVisor's kernel on an emulated processor.
		rows: "1-101",
	},
	{
		name:  "Containerd2",
		tools: []string{"containerd-v2.*/containerd", "containerd-v2.*/containerd-shim-runc-v2", "runc-v1.5.*/runc"},
		prepare: `mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/containerd\n' >/etc/systemd/system/containerd.service.d/local.conf
systemctl daemon-reload; systemctl restart containerd`,
		version: [2]string{"ctr version | grep Version; runc --version", `v?2\.3\.[\s\S]*1\.5\.`},
		escape:  "-",
	},
}

// try installs the service once more.
func try(t *testing.T, m *machine, v variant) {
	dir := os.Getenv(envTools)
	for _, pattern := range v.tools {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s in %q: make test-host builds it", pattern, dir)
		}
		m.command(t, nil, "./vm.sh", "put", m.dir, slices.Max(found), "/usr/local/bin/")
	}
	if v.prepare != "" {
		m.run(t, v.prepare)
	}
	if got := m.run(t, v.version[0]); !regexp.MustCompile(v.version[1]).MatchString(got) {
		t.Fatalf("%s says %q, want %s", v.version[0], got, v.version[1])
	}
	m.variant = v
	defer func() { m.variant = variant{} }()
	before := m.traces(t)
	m.steps(t, []step{
		{"Install", install},
		{"Calls", calls},
		{"ContainerdRestarts", containerdRestarts},
		{"ServerIsKilled", serverIsKilled},
		{"Uninstall", func(t *testing.T, m *machine) { uninstall(t, m, before) }},
	})
	if v.escape != "-" {
		m.steps(t, []step{{"Escape", escape}})
	}
}

// escape runs the escape suite on the machine, which has no compiler.
func escape(t *testing.T, m *machine) {
	dir := t.TempDir()
	m.command(t, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"}, "go", "test", "-c", "-o", filepath.Join(dir, "escape"), "../escape")
	m.run(t, "rm -rf /root/escape; mkdir -p /root/escape/test/escape /root/escape/oci")
	m.command(t, nil, "./vm.sh", "put", m.dir, filepath.Join(dir, "escape"), binary(t, "escape"), "../../systemd", "/root/escape/")
	m.command(t, nil, "./vm.sh", "put", m.dir, "../escape/testdata", "/root/escape/test/escape/")
	m.command(t, nil, "./vm.sh", "put", m.dir, "../../oci/testdata", "/root/escape/oci/")
	m.run(t, "sh /root/escape/systemd/apparmor.sh")
	// Without a copy on this host's disk.
	m.command(t, nil, "sh", "-c", "../../systemd/docker.sh save "+name+"-runtime:latest | ./vm.sh ssh '"+m.dir+"' docker load")
	m.run(t, "cd /root/escape/test/escape && "+m.variant.escape+" TMPDIR=/var/tmp CI=true CES_SLOW=10 CES_BINARY=/root/escape/"+name+
		" ../../escape -test.timeout 80m -test.run '^(TestRows|TestTable)$' -rows '"+m.variant.rows+"'")
	m.run(t, "sh /root/escape/systemd/apparmor.sh unload; docker rmi -f "+name+"-runtime:latest; rm -rf /root/escape")
}
