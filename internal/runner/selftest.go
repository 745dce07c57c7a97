package runner

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/oci"
)

//go:embed selftest.py
var selfTestProgram string

// proofMemory is the memory limit of the sandbox that reaches it: enough for an
// interpreter to start, and soon used up.
const proofMemory = 64 << 20

// selfTest proves from inside of sandboxes on fs that their protections hold:
// in one that is like all others, and in one that reaches its memory limit.
func (r *Runner) selfTest(ctx context.Context, fs *rootfs) error {
	code, err := SelfTestCode(r.opts)
	if err != nil {
		return unproven(err)
	}
	var inForce error
	res, err := r.try(ctx, fs, code, nil, func(b *box) { inForce = b.checkLimits() })
	switch {
	case err != nil:
		return err
	case inForce != nil:
		return unproven(inForce)
	case res.Status != sandbox.StatusExited || res.ExitCode != 0 || res.StderrBytes > 0:
		return unproven(fmt.Errorf("a sandbox does not work: %s with exit code %d: %s", res.Status, res.ExitCode, res.Stderr))
	}
	unmet, atEnd := strings.CutSuffix(strings.TrimSpace(string(res.Stdout)), SelfTestProven)
	if unmet = strings.TrimSpace(unmet); unmet != "" || !atEnd {
		return unproven(fmt.Errorf("does not hold: %s", strings.ReplaceAll(cmp.Or(unmet, "the self-test itself"), "\n", "; ")))
	}
	if r.opts.NoSwapLimit {
		return nil // what is over the limit may go to the host's swap space
	}
	memory := min(r.opts.Limits.Memory, proofMemory)
	// Twice the limit, and every page of it used.
	code = fmt.Sprintf("import os\nb = bytearray(%d)\nfor i in range(0, len(b), 4096): b[i] = 1\nos._exit(0)", 2*memory)
	res, err = r.try(ctx, fs, code, func(p *oci.Params) { p.Memory, p.Preload = memory, nil }, nil)
	switch {
	case err != nil:
		return err
	case res.Status != sandbox.StatusOutOfMemory:
		return unproven(fmt.Errorf("does not hold: the memory limit of %d bytes; a program that used twice as much ended as %s", memory, res.Status))
	}
	return nil
}

func unproven(err error) error {
	return &sandbox.NotReadyError{Check: "selftest", Reason: err.Error()}
}

// try runs a program of ours in a sandbox made for it. look, where there is
// one, sees the sandbox first.
func (r *Runner) try(ctx context.Context, fs *rootfs, code string, adjust func(*oci.Params), look func(*box)) (*sandbox.Result, error) {
	roomCtx, cancel := context.WithTimeoutCause(ctx, r.opts.PrepareTimeout, errNoRoom)
	defer cancel()
	room, err := r.room(roomCtx)
	if err != nil {
		return nil, err
	}
	b, err := r.obtain(ctx, sandbox.Python, fs, room, adjust)
	if err != nil {
		return nil, unproven(fmt.Errorf("a sandbox could not be started: %w", err))
	}
	defer r.disposeLater(ctx, b)
	if look != nil {
		look(b)
	}
	res, err := b.run(ctx, &sandbox.Request{Language: sandbox.Python, Code: code, Timeout: r.opts.Limits.MaxTimeout})
	if err != nil {
		return nil, unproven(fmt.Errorf("a sandbox could not be used: %w", err))
	}
	return res, nil
}

// checkLimits holds the limits that the kernel has for the sandbox against
// those it should have.
func (b *box) checkLimits() error {
	have, err := b.group.Limits()
	if err != nil {
		return err
	}
	want := b.r.opts.Limits
	var errs []error
	if have.Memory > want.Memory {
		errs = append(errs, fmt.Errorf("the memory limit is %d and not %d", have.Memory, want.Memory))
	}
	if have.PIDs != want.PIDs {
		errs = append(errs, fmt.Errorf("the limit of processes is %d and not %d", have.PIDs, want.PIDs))
	}
	if math.Abs(have.CPUs-want.CPUs) > 0.001 {
		errs = append(errs, fmt.Errorf("the limit of processors is %v and not %v", have.CPUs, want.CPUs))
	}
	if !have.NoSwap && !b.r.opts.NoSwapLimit {
		errs = append(errs, errors.New("swap space is not limited"))
	}
	return errors.Join(errs...)
}

// SelfTestProven is the last line of the self-test's program. Where every
// protection holds it is the only one.
const SelfTestProven = "proven"

// SelfTestCode is the program of the self-test, with what it must know of the
// options.
func SelfTestCode(o Options) (string, error) {
	spec, err := Spec(o, sandbox.Python)
	if err != nil {
		return "", err
	}
	// Numbers, strings and lists are the same in JSON and in Python; truth is
	// not.
	facts, err := json.Marshal(map[string]any{
		"userns": boolInt(o.UIDBase != 0), "environment": spec.Process.Env, "arch": o.Arch,
		"pids": o.Limits.PIDs, "profile": o.AppArmorProfile, "gvisor": boolInt(SecondKernel(o.Runtime)),
	})
	if err != nil {
		return "", fmt.Errorf("encode facts: %w", err)
	}
	return fmt.Sprintf("FACTS = %s\n%s", facts, selfTestProgram), nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
