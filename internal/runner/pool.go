package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

// calmTime is how long disposals and preparations, which cost twenty times the
// processor time of a short call, wait for short calls to end. Measured: a
// burst of calls is answered twice as fast, at the same sustained rate.
const calmTime = 50 * time.Millisecond

// pool holds prepared sandboxes, each for one call to come. It makes them one
// at a time: a prepare costs the processor time of a cold call, and the calls
// that run come first.
type pool struct {
	r      *Runner
	signal chan struct{} // room for one wake-up

	mu    sync.Mutex
	boxes map[sandbox.Language][]*box // guarded by mu; oldest first
	shut  bool                        // guarded by mu; nothing is added any more
}

func newPool(r *Runner) *pool {
	return &pool{r: r, signal: make(chan struct{}, 1), boxes: map[sandbox.Language][]*box{}}
}

// take returns a living sandbox on fs, or nil.
func (p *pool) take(ctx context.Context, lang sandbox.Language, fs *rootfs) *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.boxes[lang]) > 0 {
		b := p.boxes[lang][0]
		p.boxes[lang] = p.boxes[lang][1:]
		if b.rootfs == fs && b.alive() {
			return b
		}
		p.r.disposeLater(ctx, b)
	}
	return nil
}

// wake makes the pool look at itself.
func (p *pool) wake() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// flush disposes of the prepared sandboxes that unwanted names.
func (p *pool) flush(ctx context.Context, unwanted func(*box) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for lang, boxes := range p.boxes {
		var keep []*box
		for _, b := range boxes {
			if unwanted(b) {
				p.r.disposeLater(ctx, b)
			} else {
				keep = append(keep, b)
			}
		}
		p.boxes[lang] = keep
	}
}

// close disposes of all and keeps the pool empty.
func (p *pool) close(ctx context.Context) {
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	p.flush(ctx, func(*box) bool { return true })
}

func (p *pool) sizes() map[sandbox.Language]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[sandbox.Language]int{}
	for _, lang := range p.r.opts.languages() {
		out[lang] = len(p.boxes[lang])
	}
	return out
}

// oldest tells the age of the oldest prepared sandbox, zero where there is none.
func (p *pool) oldest() map[sandbox.Language]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[sandbox.Language]time.Duration{}
	for _, lang := range p.r.opts.languages() {
		out[lang] = 0
		if len(p.boxes[lang]) > 0 {
			out[lang] = time.Since(p.boxes[lang][0].born)
		}
	}
	return out
}

// short returns the language that lacks most, if any lacks.
func (p *pool) short() (lang sandbox.Language, lacking int) {
	sizes := p.sizes()
	for _, l := range p.r.opts.languages() {
		if d := p.r.opts.Pool[l] - sizes[l]; d > lacking {
			lang, lacking = l, d
		}
	}
	return lang, lacking
}

// run keeps the pool full until ctx ends.
func (p *pool) run(ctx context.Context) {
	const minWait, maxWait = time.Second, 30 * time.Second
	wait := minWait
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		p.flush(ctx, func(b *box) bool {
			return !b.alive() || b.rootfs != p.r.current() || time.Since(b.born) > p.r.opts.PoolMaxAge
		})
		for lang, lacking := p.short(); lacking > 0 && p.r.ready() == nil; lang, lacking = p.short() {
			p.r.gate.Calm(calmTime)
			err := p.add(ctx, lang)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				wait = minWait
				continue
			}
			if errors.Is(err, errNoRoom) {
				break // a disposal wakes us
			}
			p.r.log.Warn("no sandbox prepared", "language", lang, "error", err, "retry", wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait/2 + rand.N(wait/2)): // servers on one host spread out
			}
			wait = min(2*wait, maxWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.signal:
		case <-tick.C:
		}
	}
}

// add prepares one sandbox.
func (p *pool) add(ctx context.Context, lang sandbox.Language) error {
	if err := p.r.begin(); err != nil {
		return err
	}
	defer p.r.busy.Done()
	var room int
	select {
	case room = <-p.r.rooms:
	default:
		return errNoRoom
	}
	b, err := p.r.obtain(ctx, lang, p.r.current(), room, nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		p.r.disposeLater(ctx, b)
		return nil
	}
	p.boxes[lang] = append(p.boxes[lang], b)
	return nil
}
