package sandbox

import "time"

// Status says how a run ended.
type Status string

const (
	// StatusExited: the program ended by itself, with any exit code.
	StatusExited Status = "exited"
	// StatusSignaled: a signal that was not ours ended the program.
	StatusSignaled Status = "signaled"
	// StatusTimedOut: the program was killed at its time limit.
	StatusTimedOut Status = "timed_out"
	// StatusOutOfMemory: the kernel killed at least one process of the sandbox
	// at the memory limit.
	StatusOutOfMemory Status = "out_of_memory"
	// StatusCanceled: the caller went away and the program was killed.
	StatusCanceled Status = "canceled"
)

// Result is the end of one run.
type Result struct {
	Status Status
	// ExitCode is what the program ended with, 0 to 255; 128+n when signal n
	// ended it, by whomever it was sent.
	ExitCode int
	// Signal is the number of the signal that ended the program, 0 if none did.
	Signal int
	// Stdout and Stderr hold what was kept of each stream, at most
	// Limits.MaxOutputBytes: all of it, or its beginning and its end.
	Stdout, Stderr []byte
	// StdoutBytes and StderrBytes count all that the program wrote. Greater
	// than the kept length means that the middle was cut.
	StdoutBytes, StderrBytes int64
	// StdoutHead and StderrHead are the offsets in Stdout and Stderr at which
	// the cut middle belongs; the whole length where nothing was cut.
	StdoutHead, StderrHead int
	// OOMKilled is true when a process of the sandbox was killed for want of
	// memory, also where Status names an end that came later.
	OOMKilled bool
	// OOMElsewhere is true when that was not at the sandbox's own limit: all
	// sandboxes together were at theirs, or the host had no memory left.
	OOMElsewhere bool
	// Timeout is the limit that was in force.
	Timeout time.Duration
	// Duration is the wall time from the code's delivery to the end.
	Duration time.Duration
	// Queued is the time spent waiting for a slot.
	Queued time.Duration
	// CPUTime is the processor time the program used, from the cgroup, without
	// the share used before its code arrived.
	CPUTime time.Duration
	// PeakMemory is the most memory the program held, in bytes, from the
	// cgroup, without the share held before its code arrived.
	PeakMemory int64
}

// Truncated reports whether a stream was cut.
func (r *Result) Truncated() bool {
	return r.StdoutBytes > int64(len(r.Stdout)) || r.StderrBytes > int64(len(r.Stderr))
}
