package escape

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"code-execution-sandbox/test/harness"
)

// sections are all rows there are.
var sections = []struct {
	name string
	rows []row
}{
	{"files", files}, {"execution", execution}, {"information", information}, {"network", network},
	{"privilege", privilege}, {"resources", resources}, {"processes", processes}, {"streams", streams},
	{"time", clocks}, {"persistence", persistence}, {"python", python}, {"shell", shell},
}

// named reports whether the flag -rows wants a row.
func named(n int) bool {
	for part := range strings.SplitSeq(*only, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 == nil && err2 == nil && first <= n && n <= last {
			return true
		}
	}
	return *only == ""
}

// TestRows is the whole table. It prints how many rows hold, hold with a
// residue that is accepted, and say nothing on this host.
func TestRows(t *testing.T) {
	x := newExam(t, harness.Options(t))
	before := ""
	if named(173) {
		before = x.imageSum()
	}
	var all []row
	for _, section := range sections {
		rows := x.host.rows(section.rows)
		rows = slices.DeleteFunc(rows, func(r row) bool { return !named(r.n) })
		all = append(all, rows...)
		t.Run(section.name, func(t *testing.T) {
			y := *x // the same runner, with this section's test to fail
			y.t, y.faults = t, map[int][]string{}
			y.sit(rows)
			for n, faults := range y.faults {
				for _, f := range faults {
					t.Errorf("row %d: %s", n, f)
				}
			}
			x.take(&y)
		})
	}
	if before != "" {
		if after := x.imageSum(); before != after {
			t.Errorf("row 173: the image's files, read from inside, were %s and are %s", before, after)
		}
	}
	// The last row was survived as well.
	if got := x.bash(0, "echo alive"); got != "alive" || len(x.faults[0]) > 0 {
		t.Errorf("after all rows: %q %q", got, x.faults[0])
	}
	report(x, all)
}

// report counts rows by their number, each as the worst of its parts.
func report(x *exam, rows []row) {
	const held, residual, silent, failed = "held", "residual", "not applicable on this host", "failed"
	state, why := map[int]string{}, map[int][]string{}
	for _, r := range rows {
		now := held
		switch {
		case len(x.faults[r.n]) > 0:
			now = failed
		case r.unless != nil && r.unless(x.host) != "":
			now = silent
			why[r.n] = append(why[r.n], fmt.Sprintf("%s: not applicable: %s", r.what, r.unless(x.host)))
		case r.residual != "":
			now = residual
			why[r.n] = append(why[r.n], fmt.Sprintf("%s: residual: %s", r.what, r.residual))
		}
		order := []string{silent, held, residual, failed}
		if was, ok := state[r.n]; !ok || slices.Index(order, now) > slices.Index(order, was) {
			state[r.n] = now
		}
	}
	counts := map[string]int{}
	var text strings.Builder
	for _, n := range slices.Sorted(maps.Keys(state)) {
		counts[state[n]]++
		for _, w := range why[n] {
			fmt.Fprintf(&text, "  row %3d, %s\n", n, w)
		}
	}
	fmt.Printf("escape: %d rows: %d held, %d residual, %d not applicable on this host, %d failed (cgroup v%d, %s)\n%s",
		len(state), counts[held], counts[residual], counts[silent], counts[failed], x.host.cgroup, security(x.host), text.String())
}

// security names the security modules, of which AppArmor would change answers.
func security(h *host) string {
	if h.lsm == "" {
		return "no security module"
	}
	return h.lsm
}

// TestTable: a table that is read by its numbers has to be in order.
func TestTable(t *testing.T) {
	last := 0
	other := maps.Clone(onGVisor)
	for _, section := range sections {
		for _, r := range section.rows {
			does := 0
			for _, set := range []bool{r.probe != "", r.python != "", r.bash != "", r.test != nil} {
				if set {
					does++
				}
			}
			if r.n < last || r.what == "" || does > 1 || does == 0 && r.unless == nil {
				t.Errorf("row %d (%s) is out of order or incomplete", r.n, r.what)
			}
			last = r.n
			delete(other, r.what)
		}
	}
	for what := range other {
		t.Errorf("gVisor has an expectation of its own for %q, which is no row", what)
	}
}

// rowsOf returns the rows with these numbers, all parts of each.
func rowsOf(numbers ...int) []row {
	var out []row
	for _, section := range sections {
		for _, r := range section.rows {
			if slices.Contains(numbers, r.n) {
				out = append(out, r)
			}
		}
	}
	return out
}
