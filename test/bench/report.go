package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// report is the result of a run, as it stands in result.json.
type report struct {
	Host     host      `json:"host"`
	Settings []string  `json:"settings,omitempty"` // beside the defaults
	Took     string    `json:"took"`
	Missing  []string  `json:"missing,omitempty"` // what the host lacks
	Faults   []string  `json:"faults,omitempty"`
	Bars     []bar     `json:"bars"`
	Single   []summary `json:"single,omitempty"`
	Load     []summary `json:"load,omitempty"`
	Burst    []summary `json:"burst,omitempty"`
	Drain    []moment  `json:"drain,omitempty"`
	Refill   float64   `json:"refill_ms,omitempty"` // from the last call of a load to a full pool
	Long     *longRun  `json:"long,omitempty"`
	Flood    *flooded  `json:"flood,omitempty"`
	Memory   memory    `json:"memory"`

	faultsMu sync.Mutex
}

// bar is one promise of the design, held against what was measured.
type bar struct {
	Name     string  `json:"name"`
	Measured float64 `json:"measured"`
	Bar      float64 `json:"bar"`
	Unit     string  `json:"unit"`
	// Least is true for a bar that must be reached, false for one that must
	// not be passed.
	Least bool `json:"at_least"`
	// Known is false when a contender or a part of the run was missing.
	Known bool `json:"known"`
}

func (b bar) met() bool {
	if b.Least {
		return b.Measured >= b.Bar
	}
	return b.Measured <= b.Bar
}

// bars holds the figures against the bars.
func (r *report) bars() []bar {
	row := func(rows []summary, way, lang string, clients int) summary {
		for _, s := range rows {
			if s.Way == way && s.Language == lang && s.Clients == clients {
				return s
			}
		}
		return summary{}
	}
	single := func(way, lang string) float64 { return row(r.Single, way, lang, 1).P50 }
	rate := func(way string) float64 { return row(r.Load, way, "python", 4).PerSecond }
	var bars []bar
	add := func(name string, measured, limit float64, unit string, least bool) {
		bars = append(bars, bar{name, measured, limit, unit, least, measured != 0})
	}
	most := func(name string, measured, limit float64, unit string) { add(name, measured, limit, unit, false) }

	warm := single(oursWarm, "python")
	most("warm python p50 / bare python3 on the host", ratio(warm, single(bareHost, "python")), .5, "×")
	most("warm bash p50 / bare bash on the host", ratio(single(oursWarm, "bash"), single(bareHost, "bash")), 3, "×")
	most("cold python p50 / docker run", ratio(single(oursCold, "python"), single(dockerRun, "python")), .35, "×")
	most("cold bash p50 / docker run", ratio(single(oursCold, "bash"), single(dockerRun, "bash")), .35, "×")
	add("calls per second, 4 clients / docker run", ratio(rate(oursWarm), rate(dockerRun)), 3, "×", true)
	if len(r.Burst) > 0 {
		i := slices.IndexFunc(r.Burst, func(s summary) bool { return s.Way == oursWarm })
		most("burst of max_concurrent p99 / warm p50", ratio(r.Burst[i].P99, warm), 2, "×")
	}
	if l := r.Long; l != nil {
		most("long run: p50 of the last tenth / of the first", ratio(l.Last.P50, l.First.P50), 1.1, "×")
		most("long run: server memory after / before", ratio(l.After.MemoryMB, l.Before.MemoryMB), 1.1, "×")
	}
	for _, s := range r.Memory.Sandboxes {
		most("prepared "+s.Language+" sandbox beside the interpreter", s.total()-s.PSS["interpreter"], 12, "MB")
	}
	if r.Flood != nil {
		most("flood: server memory at its peak / before", ratio(r.Memory.ServerFloodPeak, r.Memory.ServerFloodFrom), 1.5, "×")
	}
	return bars
}

// phase returns the latencies of a phase of drain.
func (r *report) phase(name string) (samples []float64, least int) {
	least = -1
	for _, m := range r.Drain {
		if m.Phase == name {
			samples = append(samples, m.Took)
			if least < 0 || m.Prepared < least {
				least = m.Prepared
			}
		}
	}
	return samples, least
}

// write writes the result in every form.
func (r *report) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "result.json"), append(raw, '\n'), 0o644),  //nolint:gosec // for everybody
		os.WriteFile(filepath.Join(dir, "result.md"), []byte(r.markdown()), 0o644), //nolint:gosec // for everybody
		r.plot(filepath.Join(dir, "result.svg")),
		r.plot(filepath.Join(dir, "result.png")),
	)
}

// markdown is the result for people.
func (r *report) markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	table := func(head ...string) {
		line("| %s |", strings.Join(head, " | "))
		line("|---|%s", strings.Repeat("---:|", len(head)-1))
	}
	h := r.Host
	line("# Benchmark of code-execution-sandbox %s", h.Revision)
	line("")
	line("%s, %d × %s, %.1f GB, Linux %s; containerd %s, %s, Docker %s; on the host %s. Took %s.",
		h.Date, h.Processors, h.Processor, float64(h.MemoryMB)/1024, h.Kernel, h.Containerd, h.Runc, h.Docker, h.Python, r.Took)
	if h.Busy > .1 {
		line("\n**The machine was not quiet: %.0f %% of its processor time went elsewhere before the run. Read the ratios, not the times.**", 100*h.Busy)
	}
	for _, s := range r.Settings {
		line("\nSetting: `%s`", s)
	}
	for _, m := range r.Missing {
		line("\nMissing: %s", strings.Join(strings.Fields(m), " "))
	}
	for _, f := range r.Faults {
		line("\n**Fault**: %s", strings.Join(strings.Fields(f), " "))
	}

	line("\n## Bars\n")
	table("bar", "measured", "bar", "")
	for _, bar := range r.Bars {
		measured, verdict, sign := fmt.Sprintf("%.2f %s", bar.Measured, bar.Unit), "met", "≤"
		if bar.Least {
			sign = "≥"
		}
		switch {
		case !bar.Known:
			measured, verdict = "–", "not measured"
		case !bar.met():
			verdict = "**missed**"
		}
		line("| %s | %s | %s %g %s | %s |", bar.Name, measured, sign, bar.Bar, bar.Unit, verdict)
	}

	if len(r.Single) > 0 {
		line("\n## One call at a time\n\nMilliseconds from the call to the answer, each on a machine at rest; × is the p50 against the bare process.\n")
		table("", "calls", "p50", "p90", "p99", "×")
		for _, lang := range languages {
			base := 0.
			for _, s := range r.Single {
				if s.Language == lang && s.Way == bareHost {
					base = s.P50
				}
			}
			for _, s := range r.Single {
				if s.Language == lang {
					line("| %s: %s | %d | %.1f | %.1f | %.1f | %.2f |", lang, s.Way, s.Calls, s.P50, s.P90, s.P99, ratio(s.P50, base))
				}
			}
		}
	}
	if len(r.Load) > 0 {
		line("\n## Calls without a pause\n\nFor ours the pool is drained then, and each call also waits for those before it to be replaced. CPU is processor time of the whole machine per call, the clients included.\n")
		table("", "clients", "calls", "p50 ms", "p90 ms", "p99 ms", "calls/s", "CPU ms")
		for _, lang := range languages {
			for _, n := range []int{1, 4, clients} {
				for _, s := range r.Load {
					if s.Language == lang && s.Clients == n {
						line("| %s: %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f |", lang, s.Way, n, s.Calls, s.P50, s.P90, s.P99, s.PerSecond, s.CPU)
					}
				}
			}
		}
	}
	if len(r.Burst) > 0 {
		line("\n## A burst after idle\n")
		table("", "at once", "calls", "p50 ms", "p90 ms", "p99 ms")
		for _, s := range r.Burst {
			line("| %s: %s | %d | %d | %.1f | %.1f | %.1f |", s.Language, s.Way, s.Clients, s.Calls, s.P50, s.P90, s.P99)
		}
	}
	if len(r.Drain) > 0 {
		line("\n## A full pool under load\n\nThe pool was full again %.0f ms after the last call of the load.\n", r.Refill)
		table("", "calls", "p50 ms", "p99 ms", "fewest prepared")
		for _, p := range []struct{ name, what string }{
			{phaseBefore, "one at a time, pool full"}, {phaseLoad, "max_concurrent clients without a pause"}, {phaseAfter, "one at a time again"},
		} {
			s, least := r.phase(p.name)
			line("| %s | %d | %.1f | %.1f | %d |", p.what, len(s), percentile(s, 50), percentile(s, 99), least)
		}
	}
	if l := r.Long; l != nil {
		line("\n## The first calls against the last\n\n%d calls by 4 clients, %.1f a second.\n", l.Calls, l.PerSecond)
		table("", "before", "after")
		line("| p50 of a tenth of the calls, ms | %.1f | %.1f |", l.First.P50, l.Last.P50)
		line("| p99, ms | %.1f | %.1f |", l.First.P99, l.Last.P99)
		line("| server memory, MB | %.1f | %.1f |", l.Before.MemoryMB, l.After.MemoryMB)
		line("| goroutines | %.0f | %.0f |", l.Before.Goroutines, l.After.Goroutines)
		line("| open files | %.0f | %.0f |", l.Before.Files, l.After.Files)
		line("| shims, containers | %d, %d | %d, %d |", l.Before.Shims, l.Before.Containers, l.After.Shims, l.After.Containers)
	}
	line("\n## Memory\n\nThe server when it started: %.1f MB.", r.Memory.ServerStart)
	if len(r.Memory.Sandboxes) > 0 {
		line("\nA prepared sandbox, PSS in MB:\n")
		table("", "shim", "launcher", "interpreter", "all")
		for _, s := range r.Memory.Sandboxes {
			line("| %s | %.1f | %.1f | %.1f | %.1f |", s.Language, s.PSS["shim"], s.PSS["launcher"], s.PSS["interpreter"], s.total())
		}
	}
	if f := r.Flood; f != nil {
		line("\nA program that printed %.0f MB in %.1f s: the server counted %.0f MB, and held %.1f MB before and %.1f MB at its peak.",
			f.Printed, f.Seconds, f.Counted, r.Memory.ServerFloodFrom, r.Memory.ServerFloodPeak)
	}
	return b.String()
}
