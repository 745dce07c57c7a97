package cgroup

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Meter tells what a group has used since Group.Meter was called.
type Meter struct {
	group Group
	base  usage
	// peak is memory.peak of v2: a reset holds for the descriptor that wrote
	// it (Linux 6.12). Nil where the file does not exist (before Linux 5.19).
	peak *os.File
	// basePeak is what peak said at the start, 0 where it could be reset.
	basePeak int64
}

// Used is what a group has used since its Meter was started.
type Used struct {
	// PeakMemory is bytes above what the group held at the start, page cache
	// and tmpfs included. Where the kernel can neither reset nor tell the
	// peak it is what is held now, a lower bound.
	PeakMemory int64
	CPUTime    time.Duration
	// OOMKills counts the processes killed for want of memory.
	OOMKills int64
	// LimitHit says that the group's own limit was reached; without it, a
	// group above or the host had no memory left.
	LimitHit bool
}

// limitSlack is how far below its limit, in bytes, a group of v1 may stay when a
// process is killed there: far more than the largest single piece of memory that
// the kernel kills for, 32 KiB.
const limitSlack = 1 << 20

// Meter starts to measure. The caller closes the Meter.
func (g Group) Meter() (*Meter, error) {
	m := &Meter{group: g}
	if g.host.Version == V1 {
		if err := os.WriteFile(g.file("memory", "memory.max_usage_in_bytes"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("reset peak memory: %w", err)
		}
	} else if f, err := os.OpenFile(g.file("memory", "memory.peak"), os.O_RDWR, 0); err == nil {
		m.peak = f
		if _, err := f.WriteString("reset"); err != nil {
			m.basePeak = m.readPeak()
		}
	} else if f, err := os.Open(g.file("memory", "memory.peak")); err == nil {
		m.peak = f
		m.basePeak = m.readPeak()
	}
	var err error
	if m.base, err = g.usage(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Meter) readPeak() int64 {
	raw := make([]byte, 32)
	n, err := m.peak.ReadAt(raw, 0)
	if err != nil && err != io.EOF {
		return 0
	}
	peak, _ := strconv.ParseInt(strings.TrimSpace(string(raw[:n])), 10, 64)
	return peak
}

// Read returns what was used up to now. The figures can be read after the
// last process has ended, until the runtime deletes the group.
func (m *Meter) Read() (Used, error) {
	now, err := m.group.usage()
	if err != nil {
		return Used{}, err
	}
	peak := now.peak
	if m.peak != nil {
		peak = m.readPeak()
	}
	if peak <= m.basePeak {
		// The peak is the start's own; the program stayed below it.
		peak = now.memory
	}
	return Used{
		PeakMemory: max(0, peak-m.base.memory),
		CPUTime:    max(0, now.cpu-m.base.cpu),
		OOMKills:   now.oomKills - m.base.oomKills,
		LimitHit:   now.limitHits > m.base.limitHits || m.group.host.Version == V1 && now.peak > now.limit-limitSlack,
	}, nil
}

// Close frees what the Meter holds.
func (m *Meter) Close() {
	if m.peak != nil {
		_ = m.peak.Close()
	}
}
