// Package sandbox says what it means to run one program: the request, the
// result, the limits, the kinds of failure, and the interface that everything
// in front of the runner sees. It knows nothing of containerd, MCP or HTTP.
package sandbox

import (
	"context"
	"time"
)

// Language names the interpreter of a program.
type Language string

// The languages a program can be written in.
const (
	Bash   Language = "bash"
	Python Language = "python"
)

// Languages lists every Language, in the order in which it is shown to people.
func Languages() []Language { return []Language{Bash, Python} }

// Valid reports whether l is one of Languages.
func (l Language) Valid() bool { return l == Bash || l == Python }

// Request is one program to run. It is checked with Limits.Check.
type Request struct {
	// ID names the call in logs and in the labels of its sandbox. It is ours,
	// never the client's, and holds only [A-Za-z0-9_-].
	ID       string
	Language Language
	// Code is the source text, delivered byte for byte.
	Code string
	// Stdin is what the program reads on standard input before EOF.
	Stdin []byte
	// Timeout bounds the run from the code's delivery on. Zero means the
	// default of the Limits.
	Timeout time.Duration
	// Started, when set, is called once when the call has left the queue and
	// its sandbox begins to work for it.
	Started func()
}

// Executor runs programs. It is safe for concurrent use.
//
// A program that fails is a Result; an error is ours and is of one of the
// kinds ErrInvalid, ErrBusy, ErrUnavailable and ErrInternal. When ctx ends
// first, the Result says StatusCanceled, or the error wraps context.Cause(ctx)
// if no program had started.
type Executor interface {
	Execute(ctx context.Context, req Request) (*Result, error)
}
