package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/internal/daemon/daemontest"
	"code-execution-sandbox/test/harness"
)

func TestPercentile(t *testing.T) {
	var hundred []float64
	for i := 100; i > 0; i-- {
		hundred = append(hundred, float64(i))
	}
	for _, tt := range []struct {
		samples    []float64
		p, percent float64
	}{
		{nil, 0, 50}, {[]float64{7}, 7, 99}, {[]float64{3, 1}, 1, 50}, {[]float64{3, 1, 2}, 2, 50},
		{hundred, 50, 50}, {hundred, 90, 90}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 1, 0},
	} {
		if got := percentile(tt.samples, tt.percent); got != tt.p {
			t.Errorf("p%v of %d samples is %v, want %v", tt.percent, len(tt.samples), got, tt.p)
		}
	}
}

// rows returns a summary whose percentiles are all p50.
func row(way, lang string, clients int, p50 time.Duration, rate float64) summary {
	s := summary{Way: way, Language: lang, Clients: clients, PerSecond: rate}
	s.add(p50)
	return s
}

func sample() *report {
	r := &report{
		Single: []summary{
			row(bareHost, "python", 1, 12*time.Millisecond, 0), row(dockerRun, "python", 1, 200*time.Millisecond, 0),
			row(oursCold, "python", 1, 60*time.Millisecond, 0), row(oursWarm, "python", 1, 9*time.Millisecond, 0),
			row(oursWarm, "bash", 1, 5*time.Millisecond, 0),
		},
		Load:  []summary{row(dockerRun, "python", 4, time.Second, 8), row(oursWarm, "python", 4, time.Second, 24)},
		Burst: []summary{row(bareHost, "python", 4, 20*time.Millisecond, 0), row(oursWarm, "python", 4, 20*time.Millisecond, 0)},
		Drain: []moment{{0, 9, 4, phaseBefore}, {1, 90, 0, phaseLoad}, {2, 9, 4, phaseAfter}},
	}
	r.Bars = r.bars()
	return r
}

// Each bar is held against the right figures, in the right direction; what was
// not measured is neither met nor missed.
func TestBars(t *testing.T) {
	got := map[string]string{}
	for line := range strings.Lines(sample().markdown()) {
		cells := strings.Split(line, " | ")
		if len(cells) == 4 {
			got[strings.TrimPrefix(cells[0], "| ")] = cells[1] + ", " + strings.TrimSuffix(strings.TrimSpace(cells[3]), " |")
		}
	}
	for name, want := range map[string]string{
		"warm python p50 / bare python3 on the host": "0.75 ×, **missed**",
		"warm bash p50 / bare bash on the host":      "–, not measured",
		"cold python p50 / docker run":               "0.30 ×, met",
		"calls per second, 4 clients / docker run":   "3.00 ×, met",
		"burst of max_concurrent p99 / warm p50":     "2.22 ×, **missed**",
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := sample().write(dir); err != nil {
		t.Fatal(err)
	}
	for name, begin := range map[string]string{"result.json": "{", "result.md": "# Benchmark", "result.svg": "<?xml", "result.png": "\x89PNG"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.HasPrefix(raw, []byte(begin)) {
			t.Errorf("%s begins with %.10q (%v)", name, raw, err)
		}
		if name == "result.json" && !json.Valid(raw) {
			t.Error("result.json is not JSON")
		}
	}
}

// The whole thing, as briefly as it can be: every contender that the host has
// answers, every bar is measured, and nothing is left.
func TestRun(t *testing.T) {
	daemontest.Require(t)
	out := t.TempDir()
	if err := run(t.Context(), []string{
		"-out", out, "-set", `sandbox.image = "` + harness.Slim + `"`, "-rounds", "2", "-block", "100ms", "-block-rounds", "1",
		"-bursts", "1", "-drain", "300ms", "-calls", "20", "-flood", "300ms",
	}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Missing) > 0 || len(got.Faults) > 0 {
		t.Errorf("missing: %q, faults: %q", got.Missing, got.Faults)
	}
	for _, bar := range got.Bars {
		if !bar.Known {
			t.Errorf("not measured: %s", bar.Name)
		}
	}
	if len(got.Single) != len(ways)*len(languages) {
		t.Errorf("%d contenders, want %d ways in %d languages", len(got.Single), len(ways), len(languages))
	}
}

// A run of only some parts writes what it has.
func TestWriteNothing(t *testing.T) {
	if err := new(report).write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestChoose(t *testing.T) {
	all, err := choose("")
	if err != nil || len(all) != len(parts()) {
		t.Errorf("all parts: %d, %v", len(all), err)
	}
	some, err := choose("flood,single")
	if err != nil || len(some) != 2 || some[0].name != "flood" {
		t.Errorf("two parts: %v, %v", some, err)
	}
	if _, err := choose("single,nothing"); err == nil {
		t.Error("an unknown part is accepted")
	}
}

func TestSizes(t *testing.T) {
	full, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	short, err := parse([]string{"-calls", "5", "--short"})
	if err != nil {
		t.Fatal(err)
	}
	if short.calls != 5 || short.rounds >= full.rounds || short.block >= full.block {
		t.Errorf("short is %+v, full is %+v", short, full)
	}
}
