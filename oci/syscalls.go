package oci

import specs "github.com/opencontainers/runtime-spec/specs-go"

// Errno values of the answers, the same on amd64 and arm64
// (asm-generic/errno-base.h and errno.h).
const (
	ePERM        = 1
	eNOSYS       = 38
	eAFNOSUPPORT = 97
)

// answer is what the kernel does with a system call that a group names.
type answer struct {
	action specs.LinuxSeccompAction
	errno  uint
}

var (
	allow = answer{specs.ActAllow, 0}
	// refuse is also the answer to every call without a group.
	refuse = answer{specs.ActErrno, ePERM}
	// absent is what a kernel built without the call would answer. Libraries
	// know it and fall back, which they often do not do after EPERM.
	absent   = answer{specs.ActErrno, eNOSYS}
	noFamily = answer{specs.ActErrno, eAFNOSUPPORT}
	// pretend reports success and does nothing.
	pretend = answer{specs.ActErrno, 0}
)

// group is one row of the profile.
type group struct {
	answer answer
	// arch is set for calls, or values, that only one architecture has.
	arch Arch
	// names are separated by white space.
	names string
	// when narrows the row to calls whose arguments meet one of these
	// conditions. Empty means every call.
	//
	// One condition per rule: runc turns several conditions on the same
	// argument of one rule into alternatives. The kernel looks at the low 32
	// bits of an int argument and a filter at all 64, so a condition may allow
	// a value or a masked field but never forbid a value, which could be
	// written in a second way (CVE-2019-10063).
	when []specs.LinuxSeccompArg
}

// is matches argument index against one whole value.
func is(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

// above matches an argument that is greater than value.
func above(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpGreaterThan}
}

// masked matches an argument whose bits under mask have the given value.
func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}

// anyOf lists conditions of which one is enough.
func anyOf(conditions ...specs.LinuxSeccompArg) []specs.LinuxSeccompArg { return conditions }

// options allows a set of values of argument 0, each by itself.
func options(values ...uint64) []specs.LinuxSeccompArg {
	conditions := make([]specs.LinuxSeccompArg, 0, len(values))
	for _, v := range values {
		conditions = append(conditions, is(0, v))
	}
	return conditions
}

const (
	afUnix = 1 // AF_UNIX, linux/socket.h
	msgOOB = 1 // MSG_OOB, linux/socket.h

	// The CLONE_NEW* flags that clone(2) knows, linux/sched.h: NEWNS,
	// NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME shares its
	// bit with the exit signal, so only unshare(2) and clone3(2) take it.
	cloneNew = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	// The command of futex(2): all 32 bits but FUTEX_PRIVATE_FLAG and
	// FUTEX_CLOCK_REALTIME, linux/futex.h.
	futexCommand = 0xffffffff &^ (128 | 256)

	// The type of file in a mode, linux/stat.h.
	sIFMT, sIFIFO, sIFREG = 0o170000, 0o010000, 0o100000
)

// profile is the whole seccomp profile. Every system call of both
// architectures stands in it exactly once, or more than once with conditions;
// a test holds the table against the kernel's own lists. The refused rows
// repeat the default and are here for their reasons: runc drops a rule that
// equals the default, so they are not written into the spec.
//
// Measured against: bash, coreutils, git, jq, ffmpeg, sqlite3; Python with
// threads, multiprocessing, asyncio, subprocess, sqlite3, ssl, ctypes, numpy,
// pandas and matplotlib.
var profile = []group{
	// Files that are open.
	{answer: allow, names: `
		read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek
		close close_range dup dup3 fcntl flock ioctl ftruncate fallocate fsync fdatasync sync_file_range
		readahead copy_file_range fstat fstatfs getdents64`},
	{answer: allow, arch: AMD64, names: `dup2 getdents`},
	// Files by name. What may be changed is decided by the mounts and by the
	// ids, both of which a filter cannot see.
	{answer: allow, names: `
		openat openat2 newfstatat statx statfs faccessat faccessat2 readlinkat getcwd chdir fchdir umask truncate
		mkdirat unlinkat linkat symlinkat renameat renameat2
		fchmod fchmodat fchmodat2 fchown fchownat utimensat
		getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
		setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr`},
	{answer: allow, arch: AMD64, names: `
		open creat stat lstat access readlink mkdir rmdir unlink link symlink rename chmod chown lchown
		utime utimes futimesat`},
	// Named pipes and plain files; no device nodes, no overlayfs whiteouts. The
	// kernel reads a mode as 16 bits, of which the type is four.
	{answer: allow, arch: AMD64, names: `mknod`,
		when: anyOf(masked(1, sIFMT, sIFIFO), masked(1, sIFMT, sIFREG), masked(1, sIFMT, 0))},
	{answer: allow, names: `mknodat`,
		when: anyOf(masked(2, sIFMT, sIFIFO), masked(2, sIFMT, sIFREG), masked(2, sIFMT, 0))},
	// Pipes and waiting.
	{answer: allow, names: `
		pipe2 ppoll pselect6 epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 signalfd4
		timerfd_create timerfd_settime timerfd_gettime`},
	{answer: allow, arch: AMD64, names: `
		pipe poll select epoll_create epoll_wait eventfd signalfd`},
	// Memory.
	{answer: allow, names: `
		brk mmap munmap mremap mprotect msync mincore mlock mlock2 munlock mlockall munlockall
		membarrier mseal`},
	// Every advice but MADV_MERGEABLE (12), which would let the host merge equal
	// pages of a program with those of virtual machines: how long a write takes
	// then tells what they hold. The guard pages of 102 and 103 are newer.
	{answer: allow, names: `madvise`, when: anyOf(
		masked(2, 0xfffffff8, 0), masked(2, 0xfffffffc, 8), is(2, 13), masked(2, 0xfffffffe, 14),
		masked(2, 0xfffffff0, 16), masked(2, 0xfffffffe, 102))},
	// Processes and threads.
	{answer: allow, names: `
		execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal
		getpid getppid gettid getpgid setpgid getsid setsid set_tid_address set_robust_list
		getpriority setpriority ioprio_get ioprio_set getrlimit setrlimit getrusage times
		sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler
		sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min
		sched_rr_get_interval getcpu`},
	{answer: allow, arch: AMD64, names: `fork vfork getpgrp arch_prctl`},
	// The limits of the caller itself, which are how the C library sets them: a
	// limit of processor time is the one way to have PID 1 killed.
	{answer: allow, names: `prlimit64`, when: anyOf(is(0, 0))},
	// Locks, but none that hand on a priority: the code behind those is where
	// freed memory made root of anybody (GhostLock, CVE-2026-43499, and
	// CVE-2021-3347 before it). The command is argument 1 without its flags. A C
	// library that is told ENOSYS makes no such mutex; nothing else asks for one.
	{answer: allow, names: `futex`, when: anyOf(
		masked(1, futexCommand&^1, 0), masked(1, futexCommand, 3), masked(1, futexCommand&^1, 4), // WAIT, WAKE, REQUEUE, CMP_REQUEUE, WAKE_OP
		masked(1, futexCommand, 9), masked(1, futexCommand, 10))}, // WAIT_BITSET, WAKE_BITSET
	{answer: absent, names: `futex`, when: anyOf(
		masked(1, futexCommand&^1, 6), masked(1, futexCommand, 8), // LOCK_PI, UNLOCK_PI, TRYLOCK_PI
		masked(1, futexCommand, 11), masked(1, futexCommand&^1, 12))}, // WAIT_REQUEUE_PI, CMP_REQUEUE_PI, LOCK_PI2
	// Processes, but no namespaces: a user namespace opens nf_tables,
	// overlayfs, xfrm and the mount API to a caller without capabilities
	// (CVE-2022-0185, CVE-2023-32233, CVE-2024-1086 and many more).
	{answer: allow, names: `clone`, when: anyOf(masked(0, cloneNew, 0))},
	// Its flags lie behind a pointer, where no filter sees them. C libraries
	// fall back to clone.
	{answer: absent, names: `clone3`},
	// Identity. Without capabilities these only move between ids already held.
	{answer: allow, names: `
		getuid geteuid getgid getegid getresuid getresgid getgroups capget
		setuid setgid setreuid setregid setresuid setresgid`},
	// Signals.
	{answer: allow, names: `
		rt_sigaction rt_sigprocmask rt_sigpending rt_sigsuspend rt_sigtimedwait rt_sigqueueinfo
		rt_tgsigqueueinfo rt_sigreturn sigaltstack restart_syscall`},
	{answer: allow, arch: AMD64, names: `alarm pause`},
	// Time: reading, waiting, timers.
	{answer: allow, names: `
		clock_gettime clock_getres clock_nanosleep gettimeofday nanosleep getitimer setitimer
		timer_create timer_settime timer_gettime timer_getoverrun timer_delete`},
	{answer: allow, arch: AMD64, names: `time`},
	// The system. sysinfo tells the host's memory and load: the C library needs
	// it to answer sysconf.
	{answer: allow, names: `uname sysinfo getrandom`},
	// A program may confine itself further, as xz does.
	{answer: allow, names: `landlock_create_ruleset landlock_add_rule landlock_restrict_self`},
	// But not with filters of its own. The machine code that the kernel makes of
	// them is charged to no memory cgroup; held by listeners, whose processes
	// have long ended, one program can take all that net.core.bpf_jit_limit
	// allows the host, and then no sandbox can be given its filter (measured: 300
	// listeners of one process, 160 KB each). And the action RET_LOG writes into
	// the host's log.
	{answer: absent, names: `seccomp`},
	// prctl by option. Left out are, among others, PR_SET_MM (rewrites a
	// process's own memory map), PR_SET_PTRACER, PR_CAP_AMBIENT and
	// PR_SCHED_CORE (its cookie can idle the sibling hardware thread).
	{answer: allow, names: `prctl`, when: options(
		1, 2, // PR_SET_PDEATHSIG, GET
		3, 4, // PR_GET_DUMPABLE, SET
		15, 16, // PR_SET_NAME, GET
		21,     // PR_GET_SECCOMP; SET for the same reasons as seccomp
		23,     // PR_CAPBSET_READ
		27,     // PR_GET_SECUREBITS
		29, 30, // PR_SET_TIMERSLACK, GET
		36, 37, // PR_SET_CHILD_SUBREAPER, GET
		38, 39, // PR_SET_NO_NEW_PRIVS, GET
		40,     // PR_GET_TID_ADDRESS
		41, 42, // PR_SET_THP_DISABLE, GET
		52, 53, // PR_GET_SPECULATION_CTRL, SET
		0x53564d41, // PR_SET_VMA: names of anonymous memory
	)},
	{answer: allow, arch: ARM64, names: `prctl`, when: options(
		50, 51, // PR_SVE_SET_VL, GET
		54,     // PR_PAC_RESET_KEYS
		55, 56, // PR_SET_TAGGED_ADDR_CTRL, GET
		63, 64, // PR_SME_SET_VL, GET
	)},
	// The default personality and the question for it; not READ_IMPLIES_EXEC,
	// not ADDR_NO_RANDOMIZE, no 32-bit view.
	{answer: allow, names: `personality`, when: options(0, 0xffffffff)},

	// Sockets, of the local family alone. Every other family is a way into
	// kernel code that no program here needs. In 2026 alone a local user became
	// root through ALG (CVE-2026-31431), RXRPC (CVE-2026-43500, CVE-2026-31635)
	// and NETLINK with INET (xfrm, CVE-2026-43284); VSOCK reaches the host past
	// every network namespace. The answer is the one of a kernel without the
	// family. A rule for socket does not cover socketpair.
	{answer: allow, names: `socket socketpair`, when: anyOf(is(0, afUnix))},
	{answer: noFamily, names: `socket socketpair`, when: anyOf(is(0, 0), above(0, afUnix))},
	{answer: allow, names: `
		bind listen accept accept4 connect shutdown getsockname getpeername getsockopt setsockopt`},
	// Not with MSG_OOB, whose code for local sockets had CVE-2025-38236.
	{answer: allow, names: `sendmsg recvmsg`, when: anyOf(masked(2, msgOOB, 0))},
	{answer: allow, names: `sendto recvfrom sendmmsg recvmmsg`, when: anyOf(masked(3, msgOOB, 0))},

	// sync writes back every file system of the host: an I/O storm for free.
	// fadvise64 could evict pages of the image, which all sandboxes share, from
	// the page cache: slow calls for others, and a clock to observe them by.
	// Both are safe to skip: the one changes nothing that a program can see, the
	// other is advice.
	{answer: pretend, names: `sync syncfs fadvise64`},

	// Calls that put pages of the page cache into a pipe. Writing to such pages
	// is how Dirty Pipe (CVE-2022-0847), Copy Fail (CVE-2026-31431) and Dirty
	// Frag (CVE-2026-43284) changed files that they could only read, and a
	// changed interpreter would wait for the next call. sendfile is the same
	// code since Linux 5.12; those who call it fall back to read and write.
	{answer: absent, names: `splice vmsplice tee sendfile`},
	// Work handed to the kernel goes past this filter, call by call.
	{answer: absent, names: `io_uring_setup io_uring_enter io_uring_register`},
	{answer: absent, names: `io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents`},
	// Keyrings belong to a user id and outlive the process: a store from one
	// call to the next.
	{answer: absent, names: `add_key request_key keyctl`},
	// Files without a mount: programs could be run from them, past noexec.
	{answer: absent, names: `memfd_create memfd_secret`},
	// System V and POSIX message objects: kernel memory outside the budget of
	// /tmp and /dev/shm.
	{answer: absent, names: `
		shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
		mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr`},
	// Instances are counted twice: for the user of the sandbox, and for whoever
	// made its user namespace, which is root. The few that root may have (128 by
	// default) are for the host's own services and for all sandboxes together,
	// so one program could take them from everybody. Watchers fall back to
	// polling, as tail -f does.
	{answer: absent, names: `inotify_init1 inotify_add_watch inotify_rm_watch`},
	{answer: absent, arch: AMD64, names: `inotify_init`},
	// Page faults served by the program: it can stop the kernel half-way, which
	// makes races easy to win.
	{answer: absent, names: `userfaultfd`},
	// No processor or node of the host to choose from. numactl and BLAS
	// libraries read this as a machine with one node.
	{answer: absent, names: `get_mempolicy set_mempolicy set_mempolicy_home_node mbind migrate_pages move_pages`},
	// Optional speed-ups that nothing here needs, each with kernel code of its
	// own; rseq even with some at every switch of threads.
	{answer: absent, names: `rseq rseq_slice_yield futex_waitv futex_wake futex_wait futex_requeue
		pkey_alloc pkey_free pkey_mprotect map_shadow_stack`},
	// Newer than the libseccomp of some hosts (2.5.4 ends at call 450), where a
	// name has no effect and runc itself answers ENOSYS. Naming them keeps that
	// answer where libseccomp knows them.
	{answer: absent, names: `
		cachestat statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules
		setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr listns`},
	// Numbers without code behind them, or with none on this architecture.
	{answer: absent, names: `nfsservctl lookup_dcookie`},
	{answer: absent, arch: AMD64, names: `
		_sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area
		getpmsg putpmsg query_module security set_thread_area tuxcall uselib vserver`},

	// Other processes. Beside the risk (CVE-2019-13272, CVE-2026-46333), a
	// process that makes its parent its tracer looks ended to a shim that
	// takes any status of wait4 for an exit.
	{answer: refuse, names: `
		ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd get_robust_list`},
	// Namespaces and mounts.
	{answer: refuse, names: `
		unshare setns mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick open_tree move_mount
		mount_setattr`},
	// The usual aids of kernel exploits.
	{answer: refuse, names: `bpf perf_event_open`},
	// Files past their names, and watching whole file systems.
	{answer: refuse, names: `name_to_handle_at open_by_handle_at fanotify_init fanotify_mark`},
	// The host: clocks, modules, boot, swap, quotas, accounting, names, log.
	{answer: refuse, names: `
		clock_settime settimeofday adjtimex clock_adjtime init_module finit_module delete_module
		kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd sethostname setdomainname
		syslog vhangup`},
	{answer: refuse, arch: AMD64, names: `iopl ioperm modify_ldt sysfs ustat`},
	// Made by the kernel's own trampolines only, under a probe of the host.
	{answer: refuse, arch: AMD64, names: `uprobe uretprobe`},
	// Old, and without a user here.
	{answer: refuse, names: `remap_file_pages capset setgroups setfsuid setfsgid`},
}
