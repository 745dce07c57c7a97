package sandbox

import (
	"fmt"
	"strings"
	"time"
)

// Limits are the bounds of every run, the same for all callers.
type Limits struct {
	// MaxCodeBytes and MaxStdinBytes bound a request.
	MaxCodeBytes, MaxStdinBytes int
	// DefaultTimeout and MaxTimeout are whole seconds.
	DefaultTimeout, MaxTimeout time.Duration
	// MaxOutputBytes bounds what is kept of each stream; the rest is counted.
	MaxOutputBytes int
	// Memory is the memory of the whole sandbox, files in /tmp included, in
	// bytes. There is no swap.
	Memory int64
	// CPUs is the processor time per wall time, 1 = one processor.
	CPUs float64
	// PIDs bounds processes and threads.
	PIDs int64
	// Tmp and Shm are the sizes of /tmp and /dev/shm in bytes.
	Tmp, Shm int64
}

// Check reports the first rule of the contract that req breaks, as an
// *InvalidError, and fills in the default time limit.
func (l Limits) Check(req *Request) error {
	if !req.Language.Valid() {
		names := make([]string, 0, len(Languages()))
		for _, lang := range Languages() {
			names = append(names, fmt.Sprintf("%q", string(lang)))
		}
		return &InvalidError{"language", "use " + strings.Join(names, " or ")}
	}
	if req.Code == "" {
		return &InvalidError{"code", "must not be empty"}
	}
	if len(req.Code) > l.MaxCodeBytes {
		return &InvalidError{"code", fmt.Sprintf("is %d bytes long, the limit is %d bytes", len(req.Code), l.MaxCodeBytes)}
	}
	if len(req.Stdin) > l.MaxStdinBytes {
		return &InvalidError{"stdin", fmt.Sprintf("is %d bytes long, the limit is %d bytes", len(req.Stdin), l.MaxStdinBytes)}
	}
	if req.Timeout == 0 {
		req.Timeout = l.DefaultTimeout
	}
	if req.Timeout < time.Second || req.Timeout > l.MaxTimeout {
		return &InvalidError{"timeout_seconds", fmt.Sprintf("must be a whole number from 1 to %d", int(l.MaxTimeout/time.Second))}
	}
	return nil
}
