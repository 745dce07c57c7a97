package oci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var arches = []Arch{AMD64, ARM64}

// known reads the kernel's own list of an architecture, "number name" a line.
func known(t *testing.T, arch Arch) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "syscalls-"+string(arch)+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 {
			names[fields[1]] = true
		}
	}
	if len(names) < 300 {
		t.Fatalf("only %d system calls listed for %s", len(names), arch)
	}
	return names
}

// TestEverySyscallIsDecided: no call of the kernel gets its answer by having
// been forgotten, and no name in the table is a slip of the pen.
func TestEverySyscallIsDecided(t *testing.T) {
	all := map[string]bool{}
	decided := map[Arch]map[string]bool{}
	for _, arch := range arches {
		decided[arch] = map[string]bool{}
		for _, g := range profile {
			if g.arch == "" || g.arch == arch {
				for name := range strings.FieldsSeq(g.names) {
					decided[arch][name] = true
				}
			}
		}
		names := known(t, arch)
		for name := range names {
			all[name] = true
			if !decided[arch][name] {
				t.Errorf("%s: %s is in no group", arch, name)
			}
		}
		for name := range decided[arch] {
			if !names[name] {
				t.Errorf("%s: the kernel has no %s", arch, name)
			}
		}
	}
	for _, g := range profile {
		for name := range strings.FieldsSeq(g.names) {
			if !all[name] {
				t.Errorf("no kernel has %s", name)
			}
		}
	}
}

// TestRulesDoNotConflict: a call is either answered without conditions, by one
// rule, or by rules that each have one condition and cannot both match.
func TestRulesDoNotConflict(t *testing.T) {
	for _, arch := range arches {
		rules := map[string][]specs.LinuxSyscall{}
		for _, rule := range seccomp(arch).Syscalls {
			if len(rule.Args) > 1 {
				t.Errorf("%s: more than one condition, which runc may take as alternatives: %+v", arch, rule)
			}
			if (rule.ErrnoRet != nil) != (rule.Action == specs.ActErrno) {
				t.Errorf("%s: errno and action do not go together: %+v", arch, rule)
			}
			if rule.Action == specs.ActErrno && *rule.ErrnoRet == ePERM {
				t.Errorf("%s: the rule equals the default and has no effect: %+v", arch, rule)
			}
			if rule.Action != specs.ActErrno && rule.Action != specs.ActAllow {
				t.Errorf("%s: unexpected action: %+v", arch, rule)
			}
			if !slices.IsSorted(rule.Names) {
				t.Errorf("%s: names out of order: %v", arch, rule.Names)
			}
			for _, name := range rule.Names {
				rules[name] = append(rules[name], rule)
			}
		}
		for name, rules := range rules {
			for i, a := range rules {
				if len(a.Args) == 0 && len(rules) > 1 {
					t.Errorf("%s: %s has a rule without condition beside others", arch, name)
					continue
				}
				for _, b := range rules[:i] {
					if len(b.Args) != 0 && overlap(a.Args[0], b.Args[0]) {
						t.Errorf("%s: %s has rules that overlap: %+v, %+v", arch, name, a.Args[0], b.Args[0])
					}
				}
			}
		}
	}
}

// overlap reports whether one value can meet both conditions. Unknown pairs
// count as overlapping.
func overlap(a, b specs.LinuxSeccompArg) bool {
	if a.Index != b.Index {
		return true
	}
	if a.Op == specs.OpMaskedEqual && b.Op == specs.OpMaskedEqual {
		common := a.Value & b.Value
		return a.ValueTwo&common == b.ValueTwo&common
	}
	if a.Op != specs.OpEqualTo {
		a, b = b, a
	}
	return a.Op != specs.OpEqualTo || matches(b, a.Value)
}

// matches is the kernel's reading of one condition.
func matches(c specs.LinuxSeccompArg, value uint64) bool {
	switch c.Op {
	case specs.OpEqualTo:
		return value == c.Value
	case specs.OpGreaterThan:
		return value > c.Value
	case specs.OpMaskedEqual:
		return value&c.Value == c.ValueTwo
	}
	panic("unexpected operator " + string(c.Op))
}

// verdict is what the profile answers to one call.
func verdict(filter *specs.LinuxSeccomp, name string, args ...uint64) answer {
	for _, rule := range filter.Syscalls {
		if !slices.Contains(rule.Names, name) {
			continue
		}
		if len(rule.Args) == 1 {
			if i := int(rule.Args[0].Index); !matches(rule.Args[0], append(args, make([]uint64, 6)...)[i]) {
				continue
			}
		}
		if rule.ErrnoRet == nil {
			return answer{rule.Action, 0}
		}
		return answer{rule.Action, *rule.ErrnoRet}
	}
	return answer{filter.DefaultAction, *filter.DefaultErrnoRet}
}

func TestVerdicts(t *testing.T) {
	const high = 1 << 32 // above what the kernel reads of an int
	for _, tt := range []struct {
		want  answer
		calls string
		args  []uint64
	}{
		// What a program must never get, whatever the arguments.
		{refuse, `ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
			unshare setns mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick open_tree move_mount
			mount_setattr bpf perf_event_open name_to_handle_at open_by_handle_at fanotify_init fanotify_mark
			clock_settime settimeofday adjtimex clock_adjtime init_module finit_module delete_module kexec_load
			kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd sethostname setdomainname syslog vhangup
			iopl ioperm modify_ldt remap_file_pages capset setgroups a_call_of_tomorrow`, nil},
		{absent, `clone3 splice vmsplice tee sendfile io_uring_setup io_uring_enter io_uring_register keyctl add_key
			request_key memfd_create memfd_secret shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd
			msgrcv msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr userfaultfd inotify_init1 seccomp io_setup
			io_submit cachestat statmount listmount`, nil},
		{pretend, `sync syncfs fadvise64`, nil},

		{allow, `socket socketpair`, []uint64{1}},
		{noFamily, `socket socketpair`, []uint64{0}},
		{noFamily, `socket socketpair`, []uint64{2}},
		{noFamily, `socket socketpair`, []uint64{16}},
		{noFamily, `socket socketpair`, []uint64{38}},
		{noFamily, `socket socketpair`, []uint64{40}},
		{noFamily, `socket socketpair`, []uint64{1<<64 - 1}},
		{noFamily, `socket socketpair`, []uint64{high | 2}},
		{noFamily, `socket socketpair`, []uint64{high | 1}},

		{allow, `clone`, []uint64{17}},       // fork
		{allow, `clone`, []uint64{0x3d0f00}}, // a thread
		{allow, `clone`, []uint64{0x4111}},   // posix_spawn
		{refuse, `clone`, []uint64{0x00020000 | 17}},
		{refuse, `clone`, []uint64{0x02000000 | 17}},
		{refuse, `clone`, []uint64{0x04000000 | 17}},
		{refuse, `clone`, []uint64{0x08000000 | 17}},
		{refuse, `clone`, []uint64{0x10000000 | 17}},
		{refuse, `clone`, []uint64{high | 0x10000000}},
		{refuse, `clone`, []uint64{0x20000000 | 17}},
		{refuse, `clone`, []uint64{0x40000000 | 17}},

		{allow, `futex`, []uint64{0, 0}},
		{allow, `futex`, []uint64{0, 128 | 1}},
		{allow, `futex`, []uint64{0, 128 | 3}},
		{allow, `futex`, []uint64{0, 4}},
		{allow, `futex`, []uint64{0, 128 | 5}},
		{allow, `futex`, []uint64{0, 256 | 128 | 9}},
		{allow, `futex`, []uint64{0, 128 | 10}},
		{allow, `futex`, []uint64{0, high | 128}},
		{refuse, `futex`, []uint64{0, 2}},
		{absent, `futex`, []uint64{0, 6}},
		{absent, `futex`, []uint64{0, 128 | 7}},
		{absent, `futex`, []uint64{0, 256 | 128 | 8}},
		{absent, `futex`, []uint64{0, 11}},
		{absent, `futex`, []uint64{0, 128 | 12}},
		{absent, `futex`, []uint64{0, high | 128 | 13}},
		{refuse, `futex`, []uint64{0, 14}},
		{refuse, `futex`, []uint64{0, 512 | 6}},

		{allow, `mknodat`, []uint64{0, 0, 0o010644}},
		{allow, `mknodat`, []uint64{0, 0, 0o100644}},
		{allow, `mknodat`, []uint64{0, 0, 0o644}},
		{refuse, `mknodat`, []uint64{0, 0, 0o020644}},
		{refuse, `mknodat`, []uint64{0, 0, 0o060644}},
		{refuse, `mknodat`, []uint64{0, 0, high | 0o020644}},
		{refuse, `mknodat`, []uint64{0, 0, 0o140644}},

		{allow, `personality`, []uint64{0}},
		{allow, `personality`, []uint64{0xffffffff}},
		{refuse, `personality`, []uint64{0x0400000}},
		{refuse, `personality`, []uint64{0x0040000}},
		{refuse, `personality`, []uint64{8}},

		{allow, `prctl`, []uint64{15}},
		{refuse, `prctl`, []uint64{22}},
		{refuse, `prctl`, []uint64{62}},
		{refuse, `prctl`, []uint64{high | 62}},
		{refuse, `prctl`, []uint64{35}},
		{refuse, `prctl`, []uint64{47}},

		{allow, `madvise`, []uint64{0, 0, 4}},
		{allow, `madvise`, []uint64{0, 0, 8}},
		{allow, `madvise`, []uint64{0, 0, 11}},
		{refuse, `madvise`, []uint64{0, 0, 12}},
		{refuse, `madvise`, []uint64{0, 0, high | 12}},
		{allow, `madvise`, []uint64{0, 0, 13}},
		{allow, `madvise`, []uint64{0, 0, 14}},
		{allow, `madvise`, []uint64{0, 0, 25}},
		{refuse, `madvise`, []uint64{0, 0, 100}},
		{allow, `madvise`, []uint64{0, 0, 103}},

		{allow, `sendto recvfrom sendmmsg recvmmsg`, []uint64{0, 0, 0, 0x4000}},
		{refuse, `sendto recvfrom sendmmsg recvmmsg`, []uint64{0, 0, 0, 0x4001}},
		{refuse, `sendto recvfrom sendmmsg recvmmsg`, []uint64{0, 0, 0, high | 1}},
		{allow, `sendmsg recvmsg`, []uint64{0, 0, 0x4000}},
		{refuse, `sendmsg recvmsg`, []uint64{0, 0, 1}},

		{allow, `read write openat execve exit_group mmap rt_sigreturn getrandom wait4 pidfd_open`, nil},
	} {
		for _, arch := range arches {
			filter := seccomp(arch)
			for name := range strings.FieldsSeq(tt.calls) {
				if got := verdict(filter, name, tt.args...); got != tt.want {
					t.Errorf("%s: %s%#x: %+v, want %+v", arch, name, tt.args, got, tt.want)
				}
			}
		}
	}
	if got := verdict(seccomp(AMD64), "mknod", 0, 0o020644); got != refuse {
		t.Errorf("mknod of a device: %+v", got)
	}
	if got := verdict(seccomp(AMD64), "mknod", 0, 0o010644); got != allow {
		t.Errorf("mknod of a named pipe: %+v", got)
	}
}

func TestOneABI(t *testing.T) {
	for arch, want := range map[Arch]specs.Arch{AMD64: specs.ArchX86_64, ARM64: specs.ArchAARCH64} {
		filter := seccomp(arch)
		if len(filter.Architectures) != 1 || filter.Architectures[0] != want {
			t.Errorf("%s: %v", arch, filter.Architectures)
		}
		if filter.DefaultAction != specs.ActErrno || *filter.DefaultErrnoRet != ePERM || len(filter.Flags) != 0 || filter.ListenerPath != "" {
			t.Errorf("%s: %+v", arch, filter)
		}
	}
}
