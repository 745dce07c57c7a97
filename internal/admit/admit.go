// Package admit gives out a fixed number of slots, first come first served,
// to callers that wait in a bounded queue for a bounded time.
package admit

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"
)

// Busy is the error of a caller that got no slot.
type Busy struct {
	// Running and Queued are the load at that moment.
	Running, Queued int
	// Waited is how long the caller stood in the queue; zero when the queue
	// was full.
	Waited time.Duration
}

func (b *Busy) Error() string {
	return fmt.Sprintf("no slot (%d running, %d queued)", b.Running, b.Queued)
}

// Gate holds the slots. Create it with New. It is safe for concurrent use.
type Gate struct {
	slots, maxWaiting int
	maxWait           time.Duration

	mu      sync.Mutex
	running int           // guarded by mu
	calm    chan struct{} // guarded by mu; closed when running becomes 0
	last    time.Time     // guarded by mu; when a slot was taken last
	queue   list.List     // guarded by mu; of chan struct{}, closed when a slot is handed over
}

// New returns a Gate with slots slots and room for maxWaiting callers in the
// queue, each for at most maxWait.
func New(slots, maxWaiting int, maxWait time.Duration) *Gate {
	return &Gate{slots: slots, maxWaiting: maxWaiting, maxWait: maxWait}
}

// Enter waits for a slot. The caller gives it back by calling leave, once;
// further calls do nothing. The error is a *Busy, or the cause of ctx.
func (g *Gate) Enter(ctx context.Context) (leave func(), waited time.Duration, err error) {
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	g.mu.Lock()
	// While anybody waits every slot is taken, so this overtakes nobody.
	if g.running < g.slots {
		if g.running == 0 {
			g.calm = make(chan struct{})
		}
		g.running++
		g.last = time.Now()
		g.mu.Unlock()
		return sync.OnceFunc(g.leave), 0, nil
	}
	if g.queue.Len() >= g.maxWaiting {
		busy := &Busy{Running: g.running, Queued: g.queue.Len()}
		g.mu.Unlock()
		return nil, 0, busy
	}
	turn := make(chan struct{})
	place := g.queue.PushBack(turn)
	g.mu.Unlock()

	start := time.Now()
	timer := time.NewTimer(g.maxWait)
	defer timer.Stop()
	select {
	case <-turn:
		return sync.OnceFunc(g.leave), time.Since(start), nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
	}
	waited = time.Since(start)

	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-turn:
		// The slot came at the same moment. Nobody else knows of it.
		if err == nil {
			return sync.OnceFunc(g.leave), waited, nil
		}
		g.pass()
		return nil, waited, err
	default:
	}
	g.queue.Remove(place)
	if err == nil {
		err = &Busy{Running: g.running, Queued: g.queue.Len(), Waited: waited}
	}
	return nil, waited, err
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// pass hands a slot to the first in the queue or makes it free.
// Preconditions: g.mu is held.
func (g *Gate) pass() {
	if first := g.queue.Front(); first != nil {
		close(g.queue.Remove(first).(chan struct{}))
		g.last = time.Now()
		return
	}
	if g.running--; g.running == 0 {
		close(g.calm)
	}
}

// Calm waits until nobody holds a slot, or has held the last one taken for
// longer than limit: work that can wait keeps out of the way of callers that
// are done in a moment.
func (g *Gate) Calm(limit time.Duration) {
	g.mu.Lock()
	running, calm, left := g.running, g.calm, limit-time.Since(g.last)
	g.mu.Unlock()
	if running == 0 || left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-calm:
	case <-timer.C:
	}
}

// Load returns how many callers hold a slot and how many wait for one.
func (g *Gate) Load() (running, queued int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running, g.queue.Len()
}
