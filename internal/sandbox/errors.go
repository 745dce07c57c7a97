package sandbox

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of failure that are not the program's. Match with errors.Is.
var (
	// ErrInvalid: the request breaks a rule of the contract; nothing ran.
	ErrInvalid = errors.New("invalid request")
	// ErrBusy: no slot came free in time; nothing ran, try again later.
	ErrBusy = errors.New("no capacity")
	// ErrUnavailable: containerd, the image or the host is not in a state to
	// run programs; nothing ran or its end could not be learned.
	ErrUnavailable = errors.New("runtime unavailable")
	// ErrInternal: a fault of ours. Its details belong in the log only.
	ErrInternal = errors.New("internal fault")
)

// InvalidError is an ErrInvalid that names the argument at fault.
type InvalidError struct {
	// Argument is the name of the tool's argument.
	Argument string
	// Reason says in one line what is wrong and what is allowed. It never
	// repeats the caller's code or stdin.
	Reason string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid argument %q: %s", e.Argument, e.Reason)
}

func (e *InvalidError) Unwrap() error { return ErrInvalid }

// BusyError is an ErrBusy with the load that caused it.
type BusyError struct {
	Running, Queued int
	// Waited is how long the call stood in the queue, zero when the queue was
	// full at once.
	Waited time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("server busy (%d running, %d queued)", e.Running, e.Queued)
}

func (e *BusyError) Unwrap() error { return ErrBusy }

// NotReadyError is an ErrUnavailable that names the failing health check.
type NotReadyError struct {
	// Check is one word: containerd, image, selftest, host, shutdown.
	Check string
	// Reason says in one line what is wrong and what to do.
	Reason string
}

func (e *NotReadyError) Error() string { return e.Check + ": " + e.Reason }

func (e *NotReadyError) Unwrap() error { return ErrUnavailable }
