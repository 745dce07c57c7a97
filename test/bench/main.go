// Command bench holds the service against what a call could be instead: the
// bare interpreter, docker run with the same hardening, and the OCI runtime
// with the very same spec. All are measured in one run and in turn, so that
// what else the machine does falls on all of them alike; what counts are the
// ratios. The service is the real binary with its real configuration, called
// by the go-sdk's MCP client over HTTP with its connection kept open.
//
//	go run ./test/bench -out DIR          about eight minutes
//	go run ./test/bench -out DIR -short   about a minute
//
// It needs root, a containerd, and Docker with the runtime image. What the host
// lacks is named in the result and left out. It writes result.json, result.md,
// result.svg and result.png. A wrong answer, a failed call or something left
// behind ends it with an error; a missed bar does not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the sizes of a run. Everything is bounded in count or in time.
type options struct {
	out, server, tar, only string
	settings               stringList

	rounds      int           // calls of each contender in the comparison of single calls
	block       time.Duration // of each contender under load, at each number of clients
	blockRounds int           // how often those blocks come round
	bursts      int           // of max_concurrent calls each
	drain       time.Duration // of load on a full pool
	calls       int           // of the long run
	flood       time.Duration // of a program that prints without end
}

type stringList []string

func (s *stringList) String() string { return strings.Join(*s, " ") }

func (s *stringList) Set(v string) error {
	*s = append(*s, v)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// parse reads the flags. -short changes the defaults of the sizes, not sizes
// that were given.
func parse(args []string) (options, error) {
	var o options
	short := slices.ContainsFunc(args, func(a string) bool { return strings.TrimLeft(a, "-") == "short" })
	size := func(full, brief int) int {
		if short {
			return brief
		}
		return full
	}
	seconds := func(full, brief float64) time.Duration {
		if short {
			full = brief
		}
		return time.Duration(full * float64(time.Second))
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.Bool("short", false, "about a minute instead of eight: fewer calls, coarser figures")
	f.StringVar(&o.out, "out", ".", "`directory` for the result")
	f.StringVar(&o.server, "server", "", "`binary` of the service; empty builds it")
	f.StringVar(&o.tar, "image", "", "`tar` of the runtime image; empty takes it from Docker")
	f.StringVar(&o.only, "only", "", "`parts` to run, separated by commas: "+strings.Join(partNames(), ", ")+"; empty runs all")
	f.Var(&o.settings, "set", "a `line` of configuration with its whole key, such as 'sandbox.user_namespace = false'; may be repeated")
	f.IntVar(&o.rounds, "rounds", size(60, 10), "single calls of each contender")
	f.DurationVar(&o.block, "block", seconds(2.5, .8), "time of each contender under load")
	f.IntVar(&o.blockRounds, "block-rounds", size(3, 1), "how often those blocks come round")
	f.IntVar(&o.bursts, "bursts", size(25, 5), "bursts of max_concurrent calls")
	f.DurationVar(&o.drain, "drain", seconds(8, 2), "load on a full pool")
	f.IntVar(&o.calls, "calls", size(1000, 60), "calls of the long run")
	f.DurationVar(&o.flood, "flood", seconds(4, 2), "how long a program prints without end")
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	return o, err
}

func run(ctx context.Context, args []string) (err error) {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	wanted, err := choose(opts.only)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, as the service does")
	}
	if err := os.MkdirAll(opts.out, 0o755); err != nil { //nolint:gosec // the result is for everybody
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Hour, errors.New("took longer than an hour"))
	defer cancel()

	b, err := newBench(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	begin := time.Now()
	for _, p := range wanted {
		fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", time.Since(begin).Seconds(), p.what)
		if err := p.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.report.Took = time.Since(begin).Round(time.Second).String()
	return b.finish()
}

// finish writes the result and returns what makes the run a failure.
func (b *bench) finish() error {
	b.report.Bars = b.report.bars()
	if err := b.report.write(b.opts.out); err != nil {
		return err
	}
	fmt.Print(b.report.markdown())
	fmt.Fprintln(os.Stderr, "written to", filepath.Join(b.opts.out, "result.{json,md,svg,png}"))
	if len(b.report.Faults) > 0 {
		return fmt.Errorf("%d faults, the first: %s", len(b.report.Faults), b.report.Faults[0])
	}
	return nil
}

// part is one experiment.
type part struct {
	name, what string
	run        func(*bench, context.Context) error
}

func parts() []part {
	return []part{
		{"memory", "memory of prepared sandboxes", (*bench).memory},
		{"single", "single calls of each contender, in turn", (*bench).single},
		{"load", "each contender under load by 1, 4 and 8 clients, in turn", (*bench).load},
		{"burst", "bursts of max_concurrent calls after idle", (*bench).burst},
		{"drain", "a full pool under load, and its return", (*bench).drain},
		{"long", "the long run: the first calls against the last", (*bench).long},
		{"flood", "a program that prints without end", (*bench).flood},
	}
}

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func choose(only string) ([]part, error) {
	if only == "" {
		return parts(), nil
	}
	var chosen []part
	for name := range strings.SplitSeq(only, ",") {
		i := slices.Index(partNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("no part %q, there are %q", name, partNames())
		}
		chosen = append(chosen, parts()[i])
	}
	return chosen, nil
}
