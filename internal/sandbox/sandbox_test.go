package sandbox

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	limits := Limits{MaxCodeBytes: 10, MaxStdinBytes: 5, DefaultTimeout: 3 * time.Second, MaxTimeout: 60 * time.Second}
	good := Request{Language: Python, Code: "0123456789", Stdin: []byte("12345")}
	for _, c := range []struct {
		name, argument, says string
		change               func(*Request)
	}{
		{"as large as it may be", "", "", func(*Request) {}},
		{"longest time", "", "", func(r *Request) { r.Timeout = time.Minute }},
		{"no language", "language", `"bash" or "python"`, func(r *Request) { r.Language = "" }},
		{"unknown language", "language", `"bash" or "python"`, func(r *Request) { r.Language = "ruby" }},
		{"no code", "code", "empty", func(r *Request) { r.Code = "" }},
		{"too much code", "code", "11 bytes", func(r *Request) { r.Code += "x" }},
		{"too much input", "stdin", "6 bytes", func(r *Request) { r.Stdin = []byte("123456") }},
		{"too long", "timeout_seconds", "1 to 60", func(r *Request) { r.Timeout = 61 * time.Second }},
		{"too short", "timeout_seconds", "1 to 60", func(r *Request) { r.Timeout = time.Millisecond }},
		{"negative", "timeout_seconds", "1 to 60", func(r *Request) { r.Timeout = -time.Second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := good
			c.change(&req)
			err := limits.Check(&req)
			if c.argument == "" {
				if err != nil || req.Timeout == 0 {
					t.Errorf("%v, time limit %v", err, req.Timeout)
				}
				return
			}
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) || invalid.Argument != c.argument || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %s: …%s…", err, c.argument, c.says)
			}
		})
	}
	req := good
	if err := limits.Check(&req); err != nil || req.Timeout != limits.DefaultTimeout {
		t.Errorf("%v, default time limit %v", err, req.Timeout)
	}
}

// Each error is of exactly one kind.
func TestKinds(t *testing.T) {
	kinds := []error{ErrInvalid, ErrBusy, ErrUnavailable, ErrInternal}
	for err, want := range map[error]error{
		&InvalidError{"code", "x"}:         ErrInvalid,
		&BusyError{Running: 4, Queued: 8}:  ErrBusy,
		&NotReadyError{"image", "missing"}: ErrUnavailable,
	} {
		for _, kind := range kinds {
			if errors.Is(err, kind) != errors.Is(want, kind) {
				t.Errorf("%T is %v: %v", err, kind, errors.Is(err, kind))
			}
		}
	}
}

func TestTruncated(t *testing.T) {
	if (&Result{Stdout: []byte("ab"), StdoutBytes: 2}).Truncated() {
		t.Error("all of it is there")
	}
	if !(&Result{Stderr: []byte("ab"), StderrBytes: 3}).Truncated() {
		t.Error("a byte is missing")
	}
}
