package runner

import (
	"errors"
	"maps"
	"sync"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

// Stats are what an operator watches beside the Load: counts since the start,
// and what was seen last.
type Stats struct {
	// NotReady is the name of the check that fails, "" when programs can run.
	NotReady string
	// ContainerdUp is false while containerd does not answer. Restarts counts
	// how often another one has answered than before.
	ContainerdUp       bool
	ContainerdRestarts int
	// Hits counts the calls that found a sandbox prepared, Misses those that
	// one had to be made for. Oldest is the age of the oldest that is prepared.
	Hits, Misses map[sandbox.Language]int
	Oldest       map[sandbox.Language]time.Duration
	// Swept counts what the janitor found and removed.
	Swept Swept
}

// counts is the part of Stats that nothing else knows.
type counts struct {
	mu           sync.Mutex
	hits, misses map[sandbox.Language]int // guarded by mu
	swept        Swept                    // guarded by mu
	daemon       int                      // guarded by mu; process id of containerd, 0 for unknown
	restarts     int                      // guarded by mu
}

// took counts a call that was given a sandbox from the pool, or none.
func (c *counts) took(lang sandbox.Language, hit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hits == nil {
		c.hits, c.misses = map[sandbox.Language]int{}, map[sandbox.Language]int{}
	}
	if hit {
		c.hits[lang]++
	} else {
		c.misses[lang]++
	}
}

func (c *counts) cleaned(s Swept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.swept.Containers += s.Containers
	c.swept.Shims += s.Shims
	c.swept.Cgroups += s.Cgroups
	c.swept.Directories += s.Directories
	c.swept.Snapshots += s.Snapshots
}

// saw notes the process id of the containerd that answers.
func (c *counts) saw(daemon int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if daemon != 0 && c.daemon != 0 && daemon != c.daemon {
		c.restarts++
	}
	if daemon != 0 {
		c.daemon = daemon
	}
}

// Stats tells what r has seen.
func (r *Runner) Stats() Stats {
	s := Stats{ContainerdUp: true, Oldest: r.pool.oldest()}
	r.mu.Lock()
	err := r.notReady
	if r.closed {
		err = errClosed
	}
	r.mu.Unlock()
	if err == nil {
		err = r.crowded()
	}
	if notReady := (*sandbox.NotReadyError)(nil); errors.As(err, &notReady) {
		s.NotReady = notReady.Check
	}
	s.ContainerdUp = !errors.Is(err, errAway)
	r.counts.mu.Lock()
	defer r.counts.mu.Unlock()
	s.Hits, s.Misses = maps.Clone(r.counts.hits), maps.Clone(r.counts.misses)
	s.Swept, s.ContainerdRestarts = r.counts.swept, r.counts.restarts
	return s
}
