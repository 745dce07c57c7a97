// Package oci writes the OCI runtime specification of a sandbox.
//
// Every field that is set is set here, from Params and constants alone: no
// image metadata, no host probing, no clock, no defaults of a library. The
// same Params give the same specification, so it can be read, compared and
// kept under golden files. What a host can and cannot do is found out
// elsewhere and arrives as Params.
package oci

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// Launcher is the path in the image of the program that is PID 1.
	Launcher = "/usr/lib/code-execution-sandbox/launcher"

	// UID is the user of every program, as seen inside.
	UID = 1000
	// GID is its group.
	GID = 1000

	// MinMemory is the least memory in bytes that every runtime can be relied on
	// to start a sandbox in: some charge a copy of their own binary to it
	// (runc#4427).
	MinMemory = 32 << 20

	// MinPIDs is the least number of tasks. The runtime's init is a Go program
	// before it becomes the launcher: its threads count, it may want one more
	// at any time, and it aborts when it gets none.
	MinPIDs = 16

	// version is the lowest that has every field used: linux.resources.unified
	// and the errno values of seccomp came with 1.1.0. runc 1.1.5 states
	// 1.0.2-dev for itself but has both; crun 1.8.1 refuses 1.2.0.
	version = "1.1.0"

	// cpuPeriod is the kernel's default CFS period, in microseconds.
	cpuPeriod = 100_000
	// minCPUQuota is the kernel's lower bound of a quota, in microseconds.
	minCPUQuota = 1000

	// maxPreload is what the launcher takes of names, in bytes.
	maxPreload = 4000
)

// module is the name of a Python module as the import statement takes it, but
// for letters outside of ASCII.
var module = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// languages are the names that the launcher takes as its argument.
var languages = []string{"bash", "python"}

// IDRange is a range of ids of the host, mapped to 0 and up inside. It holds
// for users and groups alike.
type IDRange struct {
	// HostID is the first id on the host. It is not 0.
	HostID uint32
	// Size is the number of ids; more than UID.
	Size uint32
}

// Params are what differs between hosts, configurations and sandboxes.
type Params struct {
	// Arch is the architecture of the host.
	Arch Arch
	// Language is the launcher's first argument, "bash" or "python".
	Language string
	// RootPath is the root file system as the runtime sees it. Empty means
	// "rootfs", relative to the bundle, where containerd mounts the snapshot.
	RootPath string
	// UserNamespace gives the sandbox ids of its own. No two sandboxes that
	// exist at the same time may share one: kernel limits are counted per id.
	// Nil means no user namespace: the program then has UID on the host.
	UserNamespace *IDRange
	// CgroupVersion is 1 or 2.
	CgroupVersion int
	// CgroupsPath is a path below the cgroup root, or slice:prefix:name for the
	// systemd driver.
	CgroupsPath string
	// Memory is the limit of everything the sandbox holds, in bytes, files
	// included. There is no swap.
	Memory int64
	// CPUs is processor time per wall time; 1 is one processor.
	CPUs float64
	// PIDs is the limit of processes and threads.
	PIDs int64
	// Tmp and Shm are the sizes of /tmp and /dev/shm in bytes. Their pages
	// count as memory too: a size near Memory turns "disk full" into
	// "out of memory".
	Tmp, Shm int64
	// TmpInodes and ShmInodes are the numbers of files there, with the root
	// directory.
	TmpInodes, ShmInodes int64
	// NoSwapLimit is for kernels that do not account for swap space: a runtime
	// fails to set the limit there.
	NoSwapLimit bool
	// MaxRuntime is the longest a program may run.
	MaxRuntime time.Duration
	// AppArmorProfile is the name of a loaded profile. Empty means none; a name
	// on a host without AppArmor fails the start.
	AppArmorProfile string
	// Preload names Python modules that are imported before the program comes.
	Preload []string
	// RelayedStreams has the launcher use the standard streams that it is
	// started with, instead of pipes of its own.
	RelayedStreams bool
	// SecondKernel says that the runtime is gVisor's runsc.
	SecondKernel bool
}

// check reports every field that makes no sense.
func (p *Params) check() error {
	var errs []error
	require := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
		}
	}
	_, known := p.Arch.abi()
	require(known, "Arch", "no seccomp profile for %q", p.Arch)
	require(slices.Contains(languages, p.Language), "Language", "%q is not one of %v", p.Language, languages)
	require(!strings.ContainsRune(p.RootPath, 0), "RootPath", "holds a NUL byte")
	require(p.RootPath == "" || path.Clean(p.RootPath) != "/", "RootPath", "is the host's own root")
	if r := p.UserNamespace; r != nil {
		require(r.HostID != 0, "UserNamespace", "host id 0 must stay outside")
		require(r.Size > max(UID, GID), "UserNamespace", "%d ids do not reach id %d", r.Size, max(UID, GID))
		// The last id, 2^32-1, means "no id" to the kernel.
		require(uint64(r.HostID)+uint64(r.Size) <= math.MaxUint32, "UserNamespace", "%d ids from %d on exceed 32 bits", r.Size, r.HostID)
	}
	require(p.CgroupVersion == 1 || p.CgroupVersion == 2, "CgroupVersion", "%d is not 1 or 2", p.CgroupVersion)
	require(p.CgroupsPath != "" && path.Clean(p.CgroupsPath) != "/" && path.Clean(p.CgroupsPath) != ".",
		"CgroupsPath", "%q is not below the cgroup root", p.CgroupsPath)
	require(!strings.ContainsRune(p.CgroupsPath, 0) && !slices.Contains(strings.Split(p.CgroupsPath, "/"), ".."),
		"CgroupsPath", "%q leaves the cgroup root", p.CgroupsPath)
	require(p.Memory >= MinMemory, "Memory", "%d bytes are less than the %d a sandbox starts in", p.Memory, MinMemory)
	require(p.CPUs*cpuPeriod >= minCPUQuota && p.CPUs <= math.MaxInt32/cpuPeriod, "CPUs", "%v is out of range", p.CPUs)
	require(p.PIDs >= MinPIDs, "PIDs", "%d is less than the %d a sandbox starts with", p.PIDs, MinPIDs)
	require(p.Tmp > 0, "Tmp", "%d bytes: must be positive, 0 would mean no limit", p.Tmp)
	require(p.Shm > 0, "Shm", "%d bytes: must be positive, 0 would mean no limit", p.Shm)
	require(p.TmpInodes > 0, "TmpInodes", "%d: must be positive, 0 would mean no limit", p.TmpInodes)
	require(p.ShmInodes > 0, "ShmInodes", "%d: must be positive, 0 would mean no limit", p.ShmInodes)
	require(p.MaxRuntime > 0, "MaxRuntime", "%v: must be positive", p.MaxRuntime)
	for _, name := range p.Preload {
		require(module.MatchString(name), "Preload", "%q is not the name of a Python module", name)
	}
	require(len(strings.Join(p.Preload, ",")) <= maxPreload, "Preload", "the names have more than %d bytes together", maxPreload)
	return errors.Join(errs...)
}

// Spec returns the specification of one sandbox. The caller owns it. An error
// names every field of p that makes no sense.
func Spec(p Params) (*specs.Spec, error) {
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("oci spec: %w", err)
	}
	rootPath := p.RootPath
	if rootPath == "" {
		rootPath = "rootfs"
	}
	return &specs.Spec{
		Version:  version,
		Process:  process(p),
		Root:     &specs.Root{Path: rootPath, Readonly: true},
		Hostname: "sandbox",
		// No domain name: a field of 1.1 that older runtimes pass over in
		// silence, and the host's is hardly ever set.
		Mounts:      mounts(p),
		Linux:       linux(p),
		Annotations: annotations(p),
		// No hooks: they are a way to run something on the host, and nothing
		// here needs them.
	}, nil
}

// annotations are none, since they are a way to run something on the host
// (CVE-2026-53488), but one constant for gVisor: its shim gives standard streams
// to nothing but the sandbox of a pod, and waits for ever without them
// (proc.Init.Create, release-20260901).
func annotations(p Params) map[string]string {
	if !p.SecondKernel {
		return nil
	}
	return map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
}

func process(p Params) *specs.Process {
	args := []string{Launcher, p.Language}
	if !p.RelayedStreams {
		args = append(args, "own-pipes")
	}
	if p.Language == "python" && len(p.Preload) > 0 {
		args = append(args, "preload="+strings.Join(p.Preload, ","))
	}
	return &specs.Process{
		// No terminal: no /dev/console (CVE-2025-52565), no TIOCSTI.
		Terminal: false,
		User: specs.User{
			UID: UID, GID: GID,
			Umask:          new(uint32(0o077)),
			AdditionalGids: []uint32{},
		},
		Args: args,
		Env:  environment(p),
		// A constant: CVE-2024-21626 came through a working directory.
		Cwd: "/tmp",
		// Five empty sets, which JSON shows as an empty object. Inheritable is
		// one of them for CVE-2022-29162.
		Capabilities: &specs.LinuxCapabilities{
			Bounding: []string{}, Effective: []string{}, Inheritable: []string{}, Permitted: []string{}, Ambient: []string{},
		},
		NoNewPrivileges: true,
		Rlimits:         rlimits(p),
		// The first to go when the host runs out of memory. Raising it takes no
		// privilege. A program can lower it again, down to 0.
		OOMScoreAdj:     new(1000),
		ApparmorProfile: p.AppArmorProfile,
		// No scheduler and no I/O priority: runc 1.1 passes over both, and the
		// weight of the parent cgroup decides.
	}
}

// environment is all that a program finds, in a fixed order. HOME must be set:
// without it a runtime looks the user up in the image's /etc/passwd.
func environment(p Params) []string {
	// What counts the processors of the host takes as many threads, far more
	// than the quota lets run at once.
	threads := strconv.Itoa(int(math.Ceil(p.CPUs)))
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"HOME=/tmp",
		"USER=sandbox",
		"LOGNAME=sandbox",
		"TMPDIR=/tmp",
		"LANG=C.UTF-8",
		"PYTHONUNBUFFERED=1",
		"PYTHONDONTWRITEBYTECODE=1",
		"PYTHON_CPU_COUNT=" + threads,
		"OMP_NUM_THREADS=" + threads,
		"OPENBLAS_NUM_THREADS=" + threads,
		"MKL_NUM_THREADS=" + threads,
		"BLIS_NUM_THREADS=" + threads,
		"NUMEXPR_NUM_THREADS=" + threads,
		"NUMBA_NUM_THREADS=" + threads,
		"RAYON_NUM_THREADS=" + threads,
		"POLARS_MAX_THREADS=" + threads,
		// Where the image keeps models, and that nothing else can be had: the
		// library would first try the network and complain.
		"HF_HOME=/usr/share/huggingface",
		"HF_HUB_OFFLINE=1",
	}
}

// rlimits are all hard: soft and hard are the same, but for CPU. What is not
// here is inherited from the runtime's parent. AS is not, since threads and
// garbage collectors reserve more than they use; NPROC is not, since it counts
// per id over all sandboxes, and the pids cgroup is the real limit.
func rlimits(p Params) []specs.POSIXRlimit {
	// The wall clock is watched from outside. This ends a program when nobody
	// watches any more. It is per process, whose threads share the quota.
	cpu := uint64(math.Ceil(p.MaxRuntime.Seconds() * p.CPUs))
	hard := func(name string, value uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: name, Soft: value, Hard: value}
	}
	return []specs.POSIXRlimit{
		// Does not stop a core_pattern that is a pipe.
		hard("RLIMIT_CORE", 0),
		{Type: "RLIMIT_CPU", Soft: cpu + 1, Hard: cpu + 2},
		// No file can be larger, except a sparse one: "no space left" still
		// comes first.
		hard("RLIMIT_FSIZE", uint64(max(p.Tmp, p.Shm))),
		hard("RLIMIT_MEMLOCK", 64<<10),
		hard("RLIMIT_MSGQUEUE", 0),
		hard("RLIMIT_NICE", 0),
		hard("RLIMIT_NOFILE", 1024),
		hard("RLIMIT_RTPRIO", 0),
		// Queued signals and POSIX timers.
		hard("RLIMIT_SIGPENDING", 256),
		hard("RLIMIT_STACK", 8<<20),
	}
}

// mounts are all there are. Missing on purpose:
//
//   - /sys: hardware, cgroup files and block devices of the host.
//   - a cgroup mount: release_agent (CVE-2022-0492).
//   - devpts: no terminal is promised.
//   - /dev/mqueue, /run: memory that no limit of /tmp covers.
//   - anything of the host: a bind mount is a path to it.
func mounts(p Params) []specs.Mount {
	return []specs.Mount{
		{
			// subset=pid leaves nothing of the host in /proc: no kernel log,
			// no symbols, no load, no settings. Linux 5.8 and later; an older
			// one refuses the option, and the start fails.
			Destination: "/proc", Type: "proc", Source: "proc",
			Options: []string{"nosuid", "noexec", "nodev", "subset=pid"},
		},
		{
			// Room for the runtime's device nodes and links alone. Runtimes
			// make it read-only when they have filled it.
			Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "noexec", "ro", "mode=755", "size=64k", "nr_inodes=64"},
		},
		{
			// Without it Python's multiprocessing has no locks.
			Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: tmpfs(p.Shm, p.ShmInodes),
		},
		{
			// noexec means no new ELF files, not no new code: an interpreter
			// reads its script. runc 1.1 gives the mount the mode that the
			// directory has in the image, whatever mode= says.
			Destination: "/tmp", Type: "tmpfs", Source: "tmpfs",
			Options: tmpfs(p.Tmp, p.TmpInodes),
		},
	}
}

func tmpfs(size, inodes int64) []string {
	return []string{
		"nosuid", "noexec", "nodev", "mode=1777",
		"size=" + strconv.FormatInt(size, 10), "nr_inodes=" + strconv.FormatInt(inodes, 10),
	}
}

func linux(p Params) *specs.Linux {
	l := &specs.Linux{
		// All new, none joined. The network namespace holds an interface, lo,
		// that the runtime brings up; no socket can be made to use it.
		Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.MountNamespace},
			{Type: specs.NetworkNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.CgroupNamespace},
		},
		CgroupsPath: p.CgroupsPath,
		Resources:   resources(p),
		// Mounts go neither in nor out. With a user namespace runc makes it a
		// slave: none go out.
		RootfsPropagation: "private",
		Seccomp:           seccomp(p.Arch),
		// No masked and no read-only paths: with subset=pid there is nothing to
		// cover, and covering is itself a source of faults (CVE-2025-31133).
	}
	if r := p.UserNamespace; r != nil {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		l.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: r.HostID, Size: r.Size}}
		l.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: r.HostID, Size: r.Size}}
	}
	return l
}

func resources(p Params) *specs.LinuxResources {
	r := &specs.LinuxResources{
		// Runtimes add null, zero, full, random, urandom and tty again.
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		// Swap counts memory and swap together: the same value means none.
		// zswap needs no limit then, it only holds pages that go to swap.
		Memory: &specs.LinuxMemory{Limit: new(p.Memory), Swap: new(p.Memory)},
		// No shares: they divide among the children of one cgroup, here
		// sandboxes, that are all equal. The parent has some.
		CPU: &specs.LinuxCPU{
			Quota:  new(int64(math.Round(p.CPUs * cpuPeriod))),
			Period: new(uint64(cpuPeriod)),
		},
		Pids: &specs.LinuxPids{Limit: new(p.PIDs)},
		// hugetlb, rdma and io limits fail the start on a host without the
		// controller. Nothing here can reach huge pages or RDMA devices. All that
		// is read from a disk is the image, once: no program can push it out of
		// the page cache, but under the memory limit its own part of it.
	}
	if p.NoSwapLimit {
		r.Memory.Swap = nil
	}
	if p.CgroupVersion == 2 {
		// Out of memory ends the sandbox as a whole, not one process of it
		// while the program goes on half broken. runc refuses the field on v1.
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}
