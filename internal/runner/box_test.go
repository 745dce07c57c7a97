package runner

import (
	"errors"
	"syscall"
	"testing"

	"code-execution-sandbox/internal/sandbox"
)

// Every way a run can end, by what is known of it.
func TestSetEnd(t *testing.T) {
	exited := func(code int) *syscall.WaitStatus { s := syscall.WaitStatus(code << 8); return &s }
	killed := func(sig int) *syscall.WaitStatus { s := syscall.WaitStatus(sig); return &s }
	gone := errors.New("the client is gone")
	for _, c := range []struct {
		name   string
		report *syscall.WaitStatus
		cause  error // why we killed it
		oom    bool
		status sandbox.Status
		code   int
		signal int
	}{
		{"exit", exited(0), nil, false, sandbox.StatusExited, 0, 0},
		{"an exit code like a kill", exited(137), nil, false, sandbox.StatusExited, 137, 0},
		{"signal", killed(15), nil, false, sandbox.StatusSignaled, 143, 15},
		{"a core", killed(11 | 0x80), nil, false, sandbox.StatusSignaled, 139, 11},
		{"time limit", nil, errTimeLimit, false, sandbox.StatusTimedOut, 137, 9},
		{"the end came first", exited(3), errTimeLimit, false, sandbox.StatusExited, 3, 0},
		{"canceled", nil, gone, false, sandbox.StatusCanceled, 137, 9},
		{"the end came before the caller left", killed(6), gone, false, sandbox.StatusSignaled, 134, 6},
		{"all killed for memory", nil, nil, true, sandbox.StatusOutOfMemory, 137, 9},
		{"a child killed for memory", exited(1), nil, true, sandbox.StatusOutOfMemory, 1, 0},
		{"a child killed for memory, then the limit", nil, errTimeLimit, true, sandbox.StatusTimedOut, 137, 9},
	} {
		res := &sandbox.Result{OOMKilled: c.oom}
		setEnd(res, c.report, c.cause)
		if res.Status != c.status || res.ExitCode != c.code || res.Signal != c.signal {
			t.Errorf("%s: %s %d %d, want %s %d %d", c.name, res.Status, res.ExitCode, res.Signal, c.status, c.code, c.signal)
		}
	}
}
