package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// names are what monitoring matches: one that is renamed breaks it.
var names = []string{
	"configuration", "token", "cgroup", "runtime", "memory", "containerd", "run-directory", "image", "self-test", "leftovers", "clean-up",
}

func TestReport(t *testing.T) {
	var all []string
	for _, f := range findings {
		all = append(all, f.Name)
		if f.Remedy == "" {
			t.Errorf("%s has no remedy", f.Name)
		}
	}
	for _, name := range names {
		if !slices.Contains(all, name) {
			t.Errorf("the finding %s is gone", name)
		}
	}
	for _, c := range []struct {
		what string
		add  func(*report)
		fit  bool
		want []string // lines of the report
	}{
		{"well", func(r *report) {
			for _, f := range findings {
				r.add(f.Name, nil, "fine")
			}
		}, true, []string{"ok configuration fine", "ok clean-up fine"}},
		{"a warning", func(r *report) {
			for _, f := range findings {
				if f.Name == "memory" {
					r.warn(f.Name, errors.New("little"))
				} else {
					r.add(f.Name, nil, "fine")
				}
			}
		}, true, []string{"warning memory little", "-> lower sandbox.max_concurrent"}},
		{"a failure, and what rests on it", func(r *report) {
			r.add("configuration", nil, "fine")
			r.add("containerd", fmt.Errorf("away\nfar away"), "fine")
		}, false, []string{"ok configuration fine", "FAILED containerd away; far away", "-> start it", "skipped self-test rests on what failed"}},
		{"a remedy of its own", func(r *report) {
			r.add("image", fmt.Errorf("look: %w", remedied{errors.New("old"), "build it anew"}), "fine")
		}, false, []string{"FAILED image look: old", "-> build it anew"}},
	} {
		r := &report{}
		c.add(r)
		r.complete()
		if r.Fit != c.fit || len(r.Findings) != len(findings) {
			t.Errorf("%s: fit %v with %d findings, want %v with %d", c.what, r.Fit, len(r.Findings), c.fit, len(findings))
		}
		for _, f := range r.Findings {
			if (f.Status == statusFailed || f.Status == statusWarning) != (f.Remedy != "") {
				t.Errorf("%s: %s is %s with the remedy %q", c.what, f.Name, f.Status, f.Remedy)
			}
		}
		var out bytes.Buffer
		if err := r.print(&out); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
				t.Errorf("%s: no line %q in\n%s", c.what, want, out.String())
			}
		}
	}
}
