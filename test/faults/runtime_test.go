package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"code-execution-sandbox/internal/daemon"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

// wrapper is an OCI runtime that does something before it does its work.
type wrapper struct{ path, real string }

// runtimeOf puts a wrapper before the runtime of opts.
func runtimeOf(t *testing.T, opts *runner.Options) wrapper {
	t.Helper()
	real, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(opts.RunDir), "w")
	if err != nil {
		t.Fatal(err)
	}
	w := wrapper{filepath.Join(dir, "runc"), real}
	w.becomes(t, "")
	opts.RuntimeBinary = w.path
	return w
}

// becomes makes the wrapper do something first; the command stands in $verb.
func (w wrapper) becomes(t *testing.T, script string) {
	t.Helper()
	text := fmt.Sprintf(`#!/bin/bash
verb=
for a; do case $a in create|start|kill|delete|state) verb=$a; break;; esac; done
%s
exec %s "$@"
`, script, w.real)
	next := w.path + ".new"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o700), os.Rename(next, w.path)); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
}

func TestF7RuntimeIsSlowOrHangs(t *testing.T) {
	t.Parallel()
	opts, _ := own(t, daemon.Options{})
	opts.PrepareTimeout = 8 * time.Second
	runtime := runtimeOf(t, &opts)
	r := maintained(t, opts)
	t.Run("a delete that takes longer than containerd waits", func(t *testing.T) {
		runtime.becomes(t, `[ "$verb" = delete ] && sleep 12`)
		defer runtime.becomes(t, "")
		execute(t, r, bash("echo ok", 10*time.Second)).is(t, sandbox.StatusExited, "ok\n")
		clean(t, opts)
	})
	for _, verb := range []string{"create", "start", "delete"} {
		t.Run("slow "+verb, func(t *testing.T) {
			runtime.becomes(t, `[ "$verb" = `+verb+` ] && sleep 2`)
			defer runtime.becomes(t, "")
			a := execute(t, r, bash("echo ok", 10*time.Second))
			a.is(t, sandbox.StatusExited, "ok\n")
			// The runtime's time is not the program's.
			if a.err == nil && a.res.Duration >= 2*time.Second {
				t.Errorf("the program took %v", a.res.Duration)
			}
			clean(t, opts)
		})
		t.Run("hanging "+verb, func(t *testing.T) {
			runtime.becomes(t, `[ "$verb" = `+verb+` ] && exec sleep 1000`)
			within(t, 15*time.Second, func() {
				a := execute(t, r, bash("echo ok", 10*time.Second))
				if verb == "delete" {
					a.is(t, sandbox.StatusExited, "ok\n") // answered before
				} else {
					a.unavailable(t, "")
				}
			})
			time.Sleep(2 * time.Second)
			runtime.becomes(t, "")
			serves(t, r)
			clean(t, opts)
		})
	}
}

func TestF8RuntimeIsMissingOrBroken(t *testing.T) {
	t.Parallel()
	opts, _ := own(t, daemon.Options{})
	runtime := runtimeOf(t, &opts)
	r := maintained(t, opts)
	for _, c := range []struct{ name, script string }{
		{"fails", "echo no such thing >&2; exit 1"},
		{"crashes", "kill -SEGV $$"},
		{"fails at start", `[ "$verb" = start ] && exit 1`},
		{"crashes at start", `[ "$verb" = start ] && kill -KILL $$`},
		{"cannot delete", `[ "$verb" = delete ] && exit 1`},
		{"writes nonsense", `echo '{"nonsense'; exit 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.becomes(t, c.script)
			within(t, 40*time.Second, func() {
				if a := execute(t, r, bash("echo ok", 5*time.Second)); a.err != nil {
					a.unavailable(t, "")
				} else {
					a.is(t, sandbox.StatusExited, "ok\n")
				}
			})
			runtime.becomes(t, "")
			serves(t, r)
			clean(t, opts)
		})
	}
	for name, breaks := range map[string]func() error{
		"missing":        func() error { return os.Remove(runtime.path) },
		"not executable": func() error { return os.Chmod(runtime.path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := breaks(); err != nil {
				t.Fatal(err)
			}
			execute(t, r, bash("echo ok", 5*time.Second)).unavailable(t, "")
			runtime.becomes(t, "")
			serves(t, r)
			clean(t, opts)
		})
	}
}

// With the self-test, the health tells of a runtime that stops working.
func TestF8HealthTells(t *testing.T) {
	t.Parallel()
	opts, _ := own(t, daemon.Options{})
	runtime := runtimeOf(t, &opts)
	opts.SelfTest = true
	r := maintained(t, opts)
	if err := os.Remove(runtime.path); err != nil {
		t.Fatal(err)
	}
	execute(t, r, bash("echo", time.Second)).unavailable(t, "")
	var notReady *sandbox.NotReadyError
	eventually(t, time.Minute, "the health tells", func() bool {
		return errors.As(r.Health(t.Context()), &notReady) && notReady.Check == "selftest"
	})
	t.Log(notReady)
	execute(t, r, bash("echo", time.Second)).unavailable(t, "selftest")
	runtime.becomes(t, "")
	eventually(t, time.Minute, "it is healthy again", func() bool { return r.Health(t.Context()) == nil })
}
