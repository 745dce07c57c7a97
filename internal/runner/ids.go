package runner

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// uidsPerSandbox is the size of the user namespace of a sandbox. 65536 lets
// every id an image can sensibly name exist inside.
const uidsPerSandbox = 1 << 16

// ids are the ranges of host ids that this process has for itself, one for each
// room. A claim is a socket with an abstract name (unix(7)): it needs no path
// that all servers of a host could write to, and ends with the process.
type ids struct {
	ranges []uint32 // the first id of each
	claims []int    // descriptors, one for each range
}

// claimIDs claims n ranges, from base on. It passes over those that another
// server has, and those in which a process lives: it may be a sandbox that a
// dead server left, or belong to something else on the host.
func claimIDs(base uint32, n int) (_ *ids, err error) {
	got := &ids{}
	defer func() {
		if err != nil {
			got.release()
		}
	}()
	next := base
	for {
		for ; len(got.ranges) < n && next <= math.MaxUint32-2*uidsPerSandbox+1; next += uidsPerSandbox {
			claim, err := claimRange(next)
			switch {
			case err == nil:
				got.ranges, got.claims = append(got.ranges, next), append(got.claims, claim)
			case !errors.Is(err, unix.EADDRINUSE):
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

// claimRange claims one range, EADDRINUSE where another process has it.
func claimRange(first uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// It does not listen, so nobody can connect.
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@code-execution-sandbox/ids/" + strconv.FormatUint(uint64(first), 10)}); err != nil {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// drop gives up the ranges that used names.
func (i *ids) drop(used map[uint32]bool) {
	keep := &ids{}
	for n, first := range i.ranges {
		if used[first/uidsPerSandbox] {
			_ = unix.Close(i.claims[n])
			continue
		}
		keep.ranges, keep.claims = append(keep.ranges, first), append(keep.claims, i.claims[n])
	}
	*i = *keep
}

// release gives all ranges up.
func (i *ids) release() {
	for _, fd := range i.claims {
		_ = unix.Close(fd)
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
