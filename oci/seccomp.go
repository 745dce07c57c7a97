package oci

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Arch is a processor architecture, spelled as in GOARCH.
type Arch string

// The architectures that have a seccomp profile.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// abi is the one system call interface of an architecture. A second one, as in
// the profiles of Docker and containerd, would let a 64-bit process enter the
// 32-bit table by int 0x80, where socketcall passes its arguments behind a
// pointer and no rule about families holds. A call through any other ABI ends
// the process with SIGSYS.
func (a Arch) abi() (specs.Arch, bool) {
	switch a {
	case AMD64:
		return specs.ArchX86_64, true
	case ARM64:
		return specs.ArchAARCH64, true
	}
	return "", false
}

// seccomp writes the profile down for one architecture.
//
// No flags: SPEC_ALLOW would switch off a protection against speculative
// execution, and LOG would let a sandbox write into the host's log.
func seccomp(arch Arch) *specs.LinuxSeccomp {
	abi, _ := arch.abi()
	filter := &specs.LinuxSeccomp{
		DefaultAction:   refuse.action,
		DefaultErrnoRet: new(refuse.errno),
		Architectures:   []specs.Arch{abi},
	}
	for _, g := range profile {
		if g.answer == refuse || g.arch != "" && g.arch != arch {
			continue
		}
		rule := specs.LinuxSyscall{Names: strings.Fields(g.names), Action: g.answer.action}
		slices.Sort(rule.Names)
		if g.answer.action == specs.ActErrno {
			rule.ErrnoRet = new(g.answer.errno)
		}
		if len(g.when) == 0 {
			filter.Syscalls = append(filter.Syscalls, rule)
		}
		for _, condition := range g.when {
			rule.Args = []specs.LinuxSeccompArg{condition}
			rule.Names = slices.Clone(rule.Names)
			filter.Syscalls = append(filter.Syscalls, rule)
		}
	}
	return filter
}
