package escape

import "cmp"

// other is what differs in a row where programs run on gVisor's kernel. What is
// empty is as elsewhere; silent is why the row says nothing there.
type other struct{ out, err, end, silent string }

// itsOwn is for rows of what the system call filter refuses. gVisor's kernel
// answers the call by itself, and what it gives is its own: the host's kernel is
// not asked. Programs meet no filter there, since OCI seccomp in gVisor knows one
// errno alone, with which no thread could start.
var itsOwn = other{silent: "gVisor's kernel answers by itself"}

// ofRunc is for rows whose program is planted by a wrapper of runc.
var ofRunc = other{silent: "the program is planted by a wrapper of runc"}

// onGVisor has them by what the row is.
var onGVisor = map[string]other{
	"create in the directories of the image": {out: "EACCES"},
	"change existing files":                  {out: "EACCES: [^;]*; EPERM: [^;]*; EROFS: [^;]*"},
	"create in /dev":                         {out: "EACCES"},
	"create in /proc":                        {out: "EACCES"},
	"listing of /dev":                        {out: "char fd full fuse net null ptmx pts random shm stderr stdin stdout tty urandom zero"},
	"open files at the start of Python":      {out: `0 host\n1 host\n2 host`},
	"open files at the start of bash":        {out: `host\nhost\nhost\n/tmp/main.sh`},
	// Its own terminals, FUSE and tun device.
	"open devices":    {out: `ENOENT: [^;]*; ENXIO: tty; ok: ptmx pts/0 pts/ptmx fuse net/tun`},
	"mount":           {out: `(EINVAL: [^;]*; )?(ENOSYS: [^;]*; )?EPERM: tmpfs bind rw proc [^;]*`},
	"files by handle": {out: "ENOTSUP"},

	"files without a name in memory":   itsOwn,
	"32-bit system call":               itsOwn,
	"x32 system call":                  itsOwn,
	"every 32-bit number kills":        itsOwn,
	"every x32 number kills":           itsOwn,
	"personality":                      itsOwn,
	"sockets of every family":          itsOwn,
	"pairs of sockets of every family": itsOwn,
	"listing of /proc":                 {out: "bus cgroups cmdline cpuinfo devices filesystems fs gvisor irq loadavg meminfo modules mounts net self sentry-meminfo stat sys sysrq-trigger thread-self uptime version"},
	"the kernel's state":               itsOwn,
	"the host's load and memory":       itsOwn,
	"the kernel's settings":            itsOwn,
	"the kernel's switches":            {out: `EACCES: sysrq-trigger; ENOENT: [^;]*`},
	"links of the first process":       {out: `EACCES: exe cwd root fd/0; ok: ns/net`},
	"credentials":                      {out: `1000 1000 \[\] 0 0 0 0 0 1 0`},
	"user ids of the host":             {out: "0 0 4294967295 True"},
	"/sys":                             itsOwn,
	"kernel log":                       itsOwn,
	"memory and load of the host":      {out: "False"},
	"uptime of the host":               {out: "False"},
	"names of the host":                {out: "sandbox  False"},
	"names of the host in mountinfo":   {out: "False"},
	"sockets and tokens of the host":   {silent: "a walk over all files takes minutes there"},
	// A program can end its own sandbox by them.
	"limits of the first process": itsOwn,
	// There is a loopback interface of the sandbox's own, and no way out.
	"TCP and UDP":                                  {out: `ECONNREFUSED: \('127.0.0.1', 1\) \('::1', 1\); ENETUNREACH: [^;]*; ok: \('127.0.0.1', 2\) \('::1', 2\)`},
	"bash's own sockets":                           {err: `(/tmp/main.sh: [^\n]*(refused|unreachable)\n?){4}`},
	"AF_NETLINK":                                   itsOwn,
	"System V objects":                             itsOwn,
	"POSIX message queues":                         itsOwn,
	"io_uring and aio":                             itsOwn,
	"ping, raw and packet sockets":                 itsOwn,
	"new namespaces":                               itsOwn,
	"clone3, and what falls back from it":          itsOwn,
	"join namespaces":                              itsOwn,
	"other ids and capabilities":                   {out: `(ENOSYS: setfsuid; )?EPERM: setuid setgid [^;]*`},
	"programs that want to be root":                itsOwn,
	"to be traced, then a signal":                  itsOwn,
	"to be traced, then a stop":                    itsOwn,
	"into other processes":                         itsOwn,
	"memory of the first process and of a sibling": {out: `EACCES: mem; ENOENT: clear_refs`},
	"keyrings":                                     itsOwn,
	"bpf and perf":                                 {out: `(ENODEV: perf; )?EPERM: bpf.*`},
	"modules, boot, swap, accounting":              {out: `(ENOSYS: quotactl_fd; )?EPERM: init_module [^;]*`},
	"protection from the host's memory shortage":   itsOwn,
	"protection from the host's memory shortage, where the runtime cannot keep it": itsOwn,
	"write the id maps":             {out: `ENOENT: projid_map; EPERM: uid_map gid_map setgroups`},
	"priorities":                    itsOwn,
	"filters of its own":            itsOwn,
	"every system call":             itsOwn,
	"locks that hand on a priority": itsOwn,
	"prctl":                         itsOwn,
	"a setuid program":              ofRunc,
	"a program with capabilities":   ofRunc,
}

// rows returns the rows as they are to be judged on this host.
func (h *host) rows(rows []row) []row {
	out := make([]row, 0, len(rows))
	for _, r := range rows {
		if change, ok := onGVisor[r.what]; ok && h.gvisor {
			if change.silent != "" {
				r.unless = never(change.silent)
			}
			if change.out != "" {
				r.residual = ""
			}
			r.out, r.err, r.end = cmp.Or(change.out, r.out), cmp.Or(change.err, r.err), cmp.Or(change.end, r.end)
		}
		out = append(out, r)
	}
	return out
}
