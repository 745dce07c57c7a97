package runner

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// uidsPerSandbox is the size of the user namespace of a sandbox. 65536 lets
// every id an image can sensibly name exist inside.
const uidsPerSandbox = 1 << 16

// claimsFile is the same for all servers of a host, wherever their run
// directories are. The unit for systemd names its directory, too.
const claimsFile = "/run/code-execution-sandbox-ids/claims"

// ids are the ranges of host ids that this process has for itself, one for each
// room. A claim is a lock on the byte of claimsFile with the number of the range:
// an open file description lock (fcntl(2)), which ends with the process. A socket
// with an abstract name would do without a file, but is seen within one network
// namespace only, and the server has one of its own under systemd.
type ids struct {
	ranges []uint32 // the first id of each
	claims *os.File // holds the locks; nil without a range
}

// claimIDs claims n ranges, from base on. It passes over those that another
// server has, and those in which a process lives: it may be a sandbox that a
// dead server left, or belong to something else on the host.
func claimIDs(file string, base uint32, n int) (_ *ids, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("claim user ids: %w", err)
	}
	claims, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim user ids: %w", err)
	}
	got := &ids{claims: claims}
	defer func() {
		if err != nil {
			got.release()
		}
	}()
	next := base
	for {
		for ; len(got.ranges) < n && next <= math.MaxUint32-2*uidsPerSandbox+1; next += uidsPerSandbox {
			err := got.lock(next, unix.F_WRLCK)
			switch {
			case err == nil:
				got.ranges = append(got.ranges, next)
			case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES): // another process has it
				return nil, fmt.Errorf("claim user ids: %w", err)
			}
		}
		if len(got.ranges) < n {
			return nil, fmt.Errorf("claim user ids: of %d ranges from %d on only %d are free on this host: choose a lower uid_base", n, base, len(got.ranges))
		}
		// Now that nobody else can begin to use them.
		used, err := usedRanges()
		if err != nil {
			return nil, fmt.Errorf("claim user ids: %w", err)
		}
		if got.drop(used); len(got.ranges) == n {
			return got, nil
		}
	}
}

// lock sets the lock of one range, or, with F_UNLCK, gives it up.
func (i *ids) lock(first uint32, kind int16) error {
	return unix.FcntlFlock(i.claims.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: int64(first / uidsPerSandbox), Len: 1})
}

// drop gives up the ranges that used names.
func (i *ids) drop(used map[uint32]bool) {
	i.ranges = slices.DeleteFunc(i.ranges, func(first uint32) bool {
		if !used[first/uidsPerSandbox] {
			return false
		}
		_ = i.lock(first, unix.F_UNLCK)
		return true
	})
}

// release gives all ranges up.
func (i *ids) release() {
	if i.claims != nil {
		_ = i.claims.Close()
	}
	i.ranges, i.claims = nil, nil
}

// usedRanges lists the ranges with a user id that a process has, by the number
// of the range.
func usedRanges() (map[uint32]bool, error) {
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return nil, err
	}
	used := map[uint32]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// proc_pid_status(5): "Uid:", then the real, effective, saved and
		// file system id.
		_, rest, _ := bytes.Cut(raw, []byte("\nUid:"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		for field := range bytes.FieldsSeq(line) {
			if id, err := strconv.ParseUint(string(field), 10, 32); err == nil {
				used[uint32(id/uidsPerSandbox)] = true
			}
		}
	}
	return used, nil
}
