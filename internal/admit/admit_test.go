package admit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func load(t *testing.T, g *Gate, running, queued int) {
	t.Helper()
	if r, q := g.Load(); r != running || q != queued {
		t.Errorf("%d running and %d queued, want %d and %d", r, q, running, queued)
	}
}

func enter(t *testing.T, g *Gate) (leave func()) {
	t.Helper()
	leave, _, err := g.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1, 10, time.Minute)
		first := enter(t, g)
		var order []int // written by one caller at a time
		for i := range 10 {
			go func() {
				leave, waited, err := g.Enter(t.Context())
				// Each comes a second after the one before, and is served a
				// millisecond after it.
				if err != nil || waited != time.Duration(11-i)*time.Second+time.Duration(i)*time.Millisecond {
					t.Errorf("caller %d waited %v: %v", i, waited, err)
					return
				}
				order = append(order, i)
				time.Sleep(time.Millisecond)
				leave()
			}()
			time.Sleep(time.Second)
		}
		load(t, g, 1, 10)
		time.Sleep(time.Second)
		first()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Error("served in the order", order)
		}
		load(t, g, 0, 0)
	})
}

func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(2, 1, time.Minute)
		a, b := enter(t, g), enter(t, g)
		go func() { enter(t, g)() }()
		synctest.Wait()
		begin := time.Now()
		_, waited, err := g.Enter(t.Context())
		var busy *Busy
		if !errors.As(err, &busy) || *busy != (Busy{Running: 2, Queued: 1}) || waited != 0 || time.Since(begin) != 0 {
			t.Errorf("with a full queue: %v after %v", err, waited)
		}
		a()
		a() // once is enough
		b()
		synctest.Wait()
		load(t, g, 0, 0)
	})
}

func TestNobodyWaits(t *testing.T) {
	g := New(1, 0, time.Minute)
	leave := enter(t, g)
	if _, _, err := g.Enter(t.Context()); !errors.As(err, new(*Busy)) {
		t.Error(err)
	}
	leave()
	enter(t, g)()
}

func TestWaitLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1, 5, 3*time.Second)
		leave := enter(t, g)
		_, waited, err := g.Enter(t.Context())
		var busy *Busy
		if !errors.As(err, &busy) || busy.Waited != 3*time.Second || waited != 3*time.Second || busy.Running != 1 {
			t.Errorf("%v after %v", err, waited)
		}
		load(t, g, 1, 0)
		leave()
		load(t, g, 0, 0)
	})
}

func TestCancelInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1, 5, time.Hour)
		leave := enter(t, g)
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(gone) })
		if _, waited, err := g.Enter(ctx); !errors.Is(err, gone) || waited != time.Second {
			t.Errorf("%v after %v", err, waited)
		}
		load(t, g, 1, 0)
		leave()
		if _, _, err := g.Enter(ctx); !errors.Is(err, gone) {
			t.Error("one that has left gets a slot:", err)
		}
		load(t, g, 0, 0)
	})
}

// Slots, cancellations and time-outs that meet at the same moment: no slot is
// lost and none is given twice.
func TestRaces(t *testing.T) {
	const slots = 3
	g := New(slots, 50, 2*time.Millisecond)
	var inside, served atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(4000))*time.Microsecond)
				leave, _, err := g.Enter(ctx)
				if err == nil {
					if n := inside.Add(1); n > slots {
						t.Errorf("%d inside", n)
					}
					served.Add(1)
					time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
					inside.Add(-1)
					leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	load(t, g, 0, 0)
	if served.Load() == 0 {
		t.Error("nobody was served")
	}
	for range slots {
		defer enter(t, g)()
	}
	load(t, g, slots, 0)
}

func TestCalm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 50 * time.Millisecond
		g := New(2, 1, time.Second)
		calm := func() time.Duration {
			start := time.Now()
			g.Calm(limit)
			return time.Since(start)
		}
		if d := calm(); d != 0 {
			t.Errorf("with nobody there: %v", d)
		}
		leave, _, _ := g.Enter(t.Context())
		time.AfterFunc(20*time.Millisecond, leave)
		if d := calm(); d != 20*time.Millisecond {
			t.Errorf("with a short caller: %v", d)
		}
		leave, _, _ = g.Enter(t.Context())
		time.Sleep(10 * time.Millisecond)
		if d := calm(); d != limit-10*time.Millisecond {
			t.Errorf("with a long caller: %v", d)
		}
		if d := calm(); d != 0 {
			t.Errorf("with a caller that is there for long: %v", d)
		}
		leave()
	})
}
