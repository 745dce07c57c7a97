package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// single compares calls made one at a time, each when the machine has come to
// rest from the one before.
func (b *bench) single(ctx context.Context) error {
	rows := make([]summary, 0, len(b.contenders))
	for _, c := range b.contenders {
		rows = append(rows, summary{Way: c.way, Language: c.lang, Clients: 1})
	}
	for round := range b.opts.rounds {
		for _, c := range b.of("", round) {
			took, err := c.once(ctx, 0)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			i := slices.IndexFunc(rows, func(r summary) bool { return r.Way == c.way && r.Language == c.lang })
			if err != nil {
				b.fault("single call, %s, %s: %v", c.way, c.lang, err)
			} else {
				rows[i].add(took)
			}
			if err := c.rest(ctx); err != nil {
				return err
			}
		}
	}
	b.report.Single = rows
	return nil
}

// load lets 1, 4 and 8 clients call without a pause. Each block begins with
// calls that do not count, so that a full pool is no advantage.
func (b *bench) load(ctx context.Context) error {
	rows := map[string]*summary{}
	var order []*summary
	spent := map[*summary]time.Duration{}
	cpu := map[*summary]time.Duration{}
	for round := range b.opts.blockRounds {
		for _, n := range []int{1, 4, clients} {
			for _, c := range b.of("", round) {
				key := fmt.Sprint(c.way, c.lang, n)
				if rows[key] == nil {
					rows[key] = &summary{Way: c.way, Language: c.lang, Clients: n}
					order = append(order, rows[key])
				}
				row := rows[key]
				b.loop(ctx, c, n, func(made int, _ time.Duration) bool { return made < 2*n }, nil)
				busy, _ := jiffies()
				start := time.Now()
				b.loop(ctx, c, n, func(_ int, since time.Duration) bool { return since < b.opts.block }, func(took time.Duration) { row.add(took) })
				spent[row] += time.Since(start)
				after, _ := jiffies()
				cpu[row] += after - busy
				if err := c.rest(ctx); err != nil {
					return err
				}
			}
		}
	}
	for _, row := range order {
		row.PerSecond = ratio(float64(row.Calls), spent[row].Seconds())
		row.CPU = ratio(ms(cpu[row]), float64(row.Calls))
		b.report.Load = append(b.report.Load, *row)
	}
	return nil
}

// loop lets n clients call without a pause as long as more says so, of the
// calls begun and the time gone by. Every answer is looked at; took, when set,
// is told of the right ones.
func (b *bench) loop(ctx context.Context, c contender, n int, more func(made int, since time.Duration) bool, took func(time.Duration)) {
	start := time.Now()
	var mu sync.Mutex
	made := 0
	next := func() bool {
		mu.Lock()
		defer mu.Unlock()
		made++
		return ctx.Err() == nil && more(made-1, time.Since(start))
	}
	together(n, func(client int) {
		for next() {
			d, err := c.once(ctx, client)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				b.fault("%d clients, %s, %s: %v", n, c.way, c.lang, err)
				continue
			}
			if took != nil {
				mu.Lock()
				took(d)
				mu.Unlock()
			}
		}
	})
}

// burst makes max_concurrent calls at once after the machine was idle, in turn
// with as many bare processes.
func (b *bench) burst(ctx context.Context) error {
	n := min(b.cfg.Sandbox.MaxConcurrent, clients)
	for _, c := range b.of("python", 0) {
		if c.way == bareHost || c.way == oursWarm {
			b.report.Burst = append(b.report.Burst, summary{Way: c.way, Language: c.lang, Clients: n})
		}
	}
	for range b.opts.bursts {
		for i := range b.report.Burst {
			row := &b.report.Burst[i]
			c := b.find(row.Way, row.Language)
			time.Sleep(100 * time.Millisecond)
			b.loop(ctx, c, n, func(made int, _ time.Duration) bool { return made < n }, func(d time.Duration) { row.add(d) })
			if err := c.rest(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) find(way, lang string) contender {
	i := slices.IndexFunc(b.contenders, func(c contender) bool { return c.way == way && c.lang == lang })
	if i < 0 {
		return contender{}
	}
	return b.contenders[i]
}

// moment is one call in the course of drain.
type moment struct {
	Seconds  float64 `json:"seconds"` // when it began
	Took     float64 `json:"ms"`
	Prepared int     `json:"prepared"` // sandboxes in the pool when it had ended
	Phase    string  `json:"phase"`
}

// The phases of drain.
const (
	phaseBefore = "before"
	phaseLoad   = "load"
	phaseAfter  = "after"
)

// drain empties the pool by calls without a pause, and watches it come back:
// before and after, one call at a time with the pool full, and in between more
// than it can refill.
func (b *bench) drain(ctx context.Context) error {
	c := b.find(oursWarm, "python")
	start := time.Now()
	var mu sync.Mutex
	call := func(client int, phase string) {
		began := time.Since(start).Seconds()
		took, err := c.once(ctx, client)
		if err != nil {
			b.fault("pool under load, %s: %v", phase, err)
			return
		}
		prepared, err := c.server.prepared(ctx, c.lang)
		if err != nil {
			b.fault("pool under load, metrics: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		b.report.Drain = append(b.report.Drain, moment{began, ms(took), prepared, phase})
	}
	paced := func(phase string) error {
		for range 10 {
			if err := c.rest(ctx); err != nil {
				return err
			}
			call(0, phase)
		}
		return nil
	}
	if err := paced(phaseBefore); err != nil {
		return err
	}
	if err := c.rest(ctx); err != nil {
		return err
	}
	end := time.Now().Add(b.opts.drain)
	together(min(b.cfg.Sandbox.MaxConcurrent, clients), func(client int) {
		for ctx.Err() == nil && time.Now().Before(end) {
			call(client, phaseLoad)
		}
	})
	began := time.Now()
	if err := c.rest(ctx); err != nil {
		return err
	}
	b.report.Refill = ms(time.Since(began))
	return paced(phaseAfter)
}

// perSandbox is the memory of one prepared sandbox, in MB.
type perSandbox struct {
	Language string `json:"language"`
	// PSS by process: shim, launcher, interpreter.
	PSS map[string]float64 `json:"pss_mb"`
}

func (p perSandbox) total() (mb float64) {
	for _, v := range p.PSS {
		mb += v
	}
	return mb
}

type memory struct {
	Sandboxes []perSandbox `json:"prepared_sandboxes"`
	// The server's resident memory, in MB.
	ServerStart      float64 `json:"server_start_mb"`
	ServerLongBefore float64 `json:"server_before_long_run_mb"`
	ServerLongAfter  float64 `json:"server_after_long_run_mb"`
	ServerFloodFrom  float64 `json:"server_before_flood_mb"`
	ServerFloodPeak  float64 `json:"server_flood_peak_mb"`
}

// memory looks at the prepared sandboxes of a full pool.
func (b *bench) memory(ctx context.Context) error {
	if err := b.warm.settle(ctx); err != nil {
		return err
	}
	seen := map[string][]perSandbox{}
	for id, shim := range shims() {
		pids, err := b.cgroups.Group(filepath.Join(b.warm.parent, id)).Processes()
		if err != nil {
			return err
		}
		one := perSandbox{PSS: map[string]float64{"shim": mapped(shim, "Pss:")}}
		one.Language = "bash"
		for _, pid := range pids {
			name := "launcher"
			if strings.HasPrefix(processName(pid), "python") {
				one.Language, name = "python", "interpreter"
			}
			one.PSS[name] += mapped(pid, "Pss:")
		}
		seen[one.Language] = append(seen[one.Language], one)
	}
	for _, lang := range slices.Sorted(maps.Keys(seen)) {
		mean := perSandbox{Language: lang, PSS: map[string]float64{}}
		for _, one := range seen[lang] {
			for name, mb := range one.PSS {
				mean.PSS[name] += mb / float64(len(seen[lang]))
			}
		}
		b.report.Memory.Sandboxes = append(b.report.Memory.Sandboxes, mean)
	}
	return nil
}

// footprint is what a server at rest has.
type footprint struct {
	MemoryMB   float64 `json:"memory_mb"`
	Goroutines float64 `json:"goroutines"`
	Files      float64 `json:"open_files"`
	Shims      int     `json:"shims"`
	Containers int     `json:"containers"`
}

func (b *bench) footprint(ctx context.Context) (f footprint, err error) {
	if err := b.warm.settle(ctx); err != nil {
		return f, err
	}
	containers, err := b.client.ContainerService().List(ctx)
	if err != nil {
		return f, err
	}
	f.MemoryMB, f.Shims, f.Containers = serverMemory(b.warm.pid), len(shims()), len(containers)
	if f.Goroutines, err = b.warm.metric(ctx, "go_goroutines"); err != nil {
		return f, err
	}
	f.Files, err = b.warm.metric(ctx, "process_open_fds")
	return f, err
}

// longRun is the first calls of a long run against the last.
type longRun struct {
	Calls         int       `json:"calls"`
	PerSecond     float64   `json:"calls_per_second"`
	First, Last   summary   // of a tenth of the calls each
	Before, After footprint // at rest
}

// long makes many calls by 4 clients.
func (b *bench) long(ctx context.Context) error {
	c := b.find(oursWarm, "python")
	run := longRun{First: summary{Way: c.way, Language: c.lang, Clients: 4}, Last: summary{Way: c.way, Language: c.lang, Clients: 4}}
	// Before the first figure the server has grown to its working size, and
	// before the first latency the pool is drained.
	warmUp := func() { b.loop(ctx, c, 4, func(made int, _ time.Duration) bool { return made < 40 }, nil) }
	warmUp()
	var err error
	if run.Before, err = b.footprint(ctx); err != nil {
		return err
	}
	warmUp()
	var all []time.Duration
	start := time.Now()
	b.loop(ctx, c, 4, func(made int, _ time.Duration) bool { return made < b.opts.calls }, func(d time.Duration) { all = append(all, d) })
	run.PerSecond = ratio(float64(len(all)), time.Since(start).Seconds())
	tenth := len(all) / 10
	if tenth == 0 {
		return errors.New("too few calls to compare")
	}
	run.Calls = len(all)
	run.First.add(all[:tenth]...)
	run.Last.add(all[len(all)-tenth:]...)
	if run.After, err = b.footprint(ctx); err != nil {
		return err
	}
	if run.After.Shims != run.Before.Shims || run.After.Containers != run.Before.Containers {
		b.fault("the long run left something behind: %+v before, %+v after", run.Before, run.After)
	}
	b.report.Long = &run
	b.report.Memory.ServerLongBefore, b.report.Memory.ServerLongAfter = run.Before.MemoryMB, run.After.MemoryMB
	return nil
}

// flooded is what came of a program that prints without end.
type flooded struct {
	Seconds float64 `json:"seconds"`
	Printed float64 `json:"printed_mb"`
	Counted float64 `json:"counted_mb"` // by the server
}

// flood lets a program print as fast as it can and watches the server's
// memory. The program says how much it was; the server must have counted just
// as much.
func (b *bench) flood(ctx context.Context) error {
	const counter = `code_execution_sandbox_output_bytes_total{stream="stdout"}`
	c := b.find(oursWarm, "python")
	if err := c.rest(ctx); err != nil {
		return err
	}
	before, err := b.warm.metric(ctx, counter)
	if err != nil {
		return err
	}
	b.report.Memory.ServerFloodFrom = serverMemory(b.warm.pid)
	peak := b.report.Memory.ServerFloodFrom
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			peak = max(peak, serverMemory(b.warm.pid))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	code := fmt.Sprintf(`import os, sys, time
block, n, end = b"y\n" * 32768, 0, time.monotonic() + %f
while time.monotonic() < end:
    n += os.write(1, block)
print(n, file=sys.stderr)
`, b.opts.flood.Seconds())
	start := time.Now()
	text, err := c.server.answer(ctx, 0, "python", code)
	took := time.Since(start)
	close(stop)
	watch.Wait()
	if err != nil {
		b.fault("flood: %v", err)
		return nil
	}
	after, err := b.warm.metric(ctx, counter)
	if err != nil {
		return err
	}
	var printed float64
	_, said, _ := strings.Cut(text, "\nstderr:\n")
	if _, err := fmt.Sscan(said, &printed); err != nil || printed != after-before {
		b.fault("flood: the program printed %s bytes, %.0f were counted", strings.TrimSpace(said), after-before)
	}
	if !strings.Contains(text, "stdout (cut in the middle") || len(text) > 2*b.cfg.Result.MaxStdoutChars {
		b.fault("flood: an answer of %d bytes: %q", len(text), clip(text))
	}
	b.report.Memory.ServerFloodPeak = peak
	b.report.Flood = &flooded{Seconds: took.Seconds(), Printed: printed / 1e6, Counted: (after - before) / 1e6}
	return nil
}
