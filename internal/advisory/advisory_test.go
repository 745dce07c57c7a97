package advisory

import (
	"slices"
	"strings"
	"testing"
)

func TestData(t *testing.T) {
	all, err := faults(data)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, f := range all {
		seen[f.Component]++
	}
	for _, c := range []string{Runc, Containerd, Linux} {
		if seen[c] == 0 {
			t.Errorf("nothing is known of %s", c)
		}
	}
}

func TestDataErrors(t *testing.T) {
	good := "[[fault]]\nid = \"X\"\ncomponent = \"runc\"\naffected = [[\"1.0\", \"1.1\"]]\nwhat = \"w\"\ndo = \"d\"\n"
	if _, err := faults(good); err != nil {
		t.Fatal(err)
	}
	for damage, want := range map[[2]string]string{
		{"runc", "rune"}:                                     "unknown component",
		{`"1.0", "1.1"`, `"1.1", "1.0"`}:                     "holds no version",
		{`"1.0", "1.1"`, `"1.0", "1.0"`}:                     "holds no version",
		{`"1.0", "1.1"`, `"one", "1.1"`}:                     "not a version",
		{`"1.0", "1.1"]`, `"1.0", "1.3"], ["1.2", ""]`}:      "comes before",
		{`"1.0", "1.1"]`, `"1.0", ""], ["1.2", ""]`}:         "nothing can follow",
		{`what = "w"`, ``}:                                   "is missing",
		{`what = "w"`, "what = \"w\"\nwhere = \"x\""}:        "unknown key",
		{`what = "w"`, "what = \"w\"\ncgroup = 3"}:           "no cgroup version",
		{`what = "w"`, "what = \"w\"\npackages = [\"1.0\"]"}: "not a distribution",
		{`id = "X"`, ``}:                                     "id is missing",
	} {
		if _, err := faults(strings.Replace(good, damage[0], damage[1], 1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", damage[1], err, want)
		}
	}
	if _, err := faults(good + good); err == nil {
		t.Error("an id that stands twice is accepted")
	}
}

func TestVersions(t *testing.T) {
	ordered := []string{"1.0.0-rc.3", "1.0.0-rc.93", "1.0.0", "1.1.5+ds1", "1.1.12", "1.2", "1.4.0~rc2", "1.4.0-rc.3", "v1.4.0", "1.4.1-0ubuntu1", "6.12.48+deb13-amd64", "6.18.44-x", "7.0.0-rc1", "7.0"}
	for i := range ordered {
		for j := range ordered {
			a, err := parseVersion(ordered[i])
			if err != nil {
				t.Fatal(err)
			}
			b, err := parseVersion(ordered[j])
			if err != nil {
				t.Fatal(err)
			}
			if got := a.compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s against %s: %d", ordered[i], ordered[j], got)
			}
		}
	}
	if a, _ := parseVersion("6.12"); a.compare(version{numbers: []int{6, 12, 0}}) != 0 {
		t.Error("6.12 is not 6.12.0")
	}
	for _, s := range []string{"", "x", "-1", "unknown"} {
		if v, err := parseVersion(s); err == nil {
			t.Errorf("%q is %v", s, v)
		}
	}
}

func TestSince(t *testing.T) {
	for _, c := range []struct {
		pkg, first string
		want       bool
	}{
		{"1.1.5+ds1-1+deb12u1", "1.1.5+ds1-1+deb12u1", true},
		{"1.1.5+ds1-1+deb12u10", "1.1.5+ds1-1+deb12u9", true},
		{"1.1.5+ds1-1+deb12u1", "1.1.5+ds1-1+deb12u2", false},
		{"1.1.5+ds1-1", "1.1.5+ds1-1+deb12u1", false},
		{"1.1.5+ds1-2+deb12u3", "1.1.5+ds1-1+deb12u1", false},
		{"1.7.24~ds1-6+deb13u2", "1.6.20~ds1-1+deb12u1", false},
		{"1.3.3-0ubuntu1~24.04.3", "1.3.3-0ubuntu1~24.04.2", false}, // not a counter that is known
		{"", "1.1.5+ds1-1+deb12u1", false},
	} {
		if got := since(c.pkg, c.first); got != c.want {
			t.Errorf("%q since %q: %t", c.pkg, c.first, got)
		}
	}
}

func TestLook(t *testing.T) {
	for _, c := range []struct {
		name   string
		found  []Found
		cgroup int
		// has are faults that must be found, hasNot others; "?" behind one says
		// that it may have been fixed.
		has, hasNot []string
	}{
		{
			"Debian 12", []Found{{Runc, "1.1.5+ds1", "1.1.5+ds1-1+deb12u1"}, {Containerd, "1.6.20~ds1", "1.6.20~ds1-1+deb12u3"}, {Linux, "6.1.158-1", ""}}, 2,
			[]string{"CVE-2025-31133?", "CVE-2026-31431", "CVE-2026-53488?"},
			[]string{"CVE-2024-21626", "CVE-2024-25621", "CVE-2025-64329", "runc-5208", "runc-5403"},
		},
		{"Debian 12 before its updates", []Found{{Runc, "1.1.5+ds1", "1.1.5+ds1-1"}, {Containerd, "1.6.20~ds1", "1.6.20~ds1-1+deb12u1"}}, 2,
			[]string{"CVE-2024-21626?", "CVE-2024-25621"}, nil},
		{"upstream 1.3.4", []Found{{Runc, "1.3.4", ""}}, 2, []string{"runc-5208", "CVE-2026-41579"}, []string{"CVE-2025-31133"}},
		{"the bar", []Found{{Runc, "1.5.3", ""}, {Containerd, "v2.3.7", ""}, {Linux, "7.2.1", ""}}, 2, nil, []string{"CVE", "runc-"}},
		{"kernel and runc together", []Found{{Runc, "1.5.1", ""}, {Linux, "6.18.44", ""}}, 2, []string{"runc-5403"}, nil},
		{"not on cgroup v1", []Found{{Runc, "1.5.1", ""}, {Linux, "6.18.44", ""}}, 1, nil, []string{"runc-5403"}},
		{"not on an older kernel", []Found{{Runc, "1.5.1", ""}, {Linux, "6.12.90", ""}}, 2, nil, []string{"runc-5403"}},
		{"the fix in each series", []Found{{Linux, "6.12.85", ""}}, 2, nil, []string{"CVE-2026-31431"}},
		{"just before it", []Found{{Linux, "6.12.84", ""}}, 2, []string{"CVE-2026-31431"}, nil},
		{"a series without", []Found{{Linux, "6.17.13", ""}}, 2, []string{"CVE-2026-31431"}, nil},
		{"Ubuntu", []Found{{Linux, "6.8.12", "Ubuntu 6.8.0-117.117-generic"}}, 2, []string{"CVE-2026-31431?"}, nil},
		{"another runtime", []Found{{"crun", "1.8.1", ""}}, 1, nil, []string{"CVE", "runc-"}},
	} {
		findings, err := Look(c.found, c.cgroup)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var got []string
		for _, f := range findings {
			id := f.ID
			if f.MaybeFixed {
				id += "?"
			}
			got = append(got, id)
		}
		for _, id := range c.has {
			if !slices.Contains(got, id) {
				t.Errorf("%s: %s is missing in %q", c.name, id, got)
			}
		}
		for _, id := range c.hasNot {
			if slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, id) }) {
				t.Errorf("%s: %s is found: %q", c.name, id, got)
			}
		}
		if !slices.IsSortedFunc(findings, func(a, b Finding) int { return strings.Compare(boolKey(a), boolKey(b)) }) {
			t.Errorf("%s: what matters does not come first: %q", c.name, got)
		}
	}
	if _, err := Look([]Found{{Runc, "unknown", ""}}, 2); err == nil {
		t.Error("a version that cannot be read is passed over")
	}
}

func TestFound(t *testing.T) {
	for _, c := range []struct {
		text string
		want Found
	}{
		{"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\ngo: go1.19.8\nlibseccomp: 2.5.4\n", Found{"runc", "1.1.5+ds1", "1.1.5+ds1-1+deb12u1"}},
		{"runc version 1.3.3\ncommit: v1.3.3-0-gd842d771\n", Found{"runc", "1.3.3", ""}},
		{"runc version 1.3.3-0ubuntu1~24.04.3\nspec: 1.2.1\n", Found{"runc", "1.3.3-0ubuntu1~24.04.3", ""}},
		{"crun version 1.8.1\ncommit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\n", Found{"crun", "1.8.1", ""}},
		{"runsc version release-20260901.0\nspec: 1.1.0-rc.1\n", Found{"runsc", "release-20260901.0", ""}},
	} {
		if got, err := parseRuntime(c.text); err != nil || got != c.want {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
	for _, text := range []string{"", "runc\n", "command not found"} {
		if got, err := parseRuntime(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if got := Daemon("1.6.20~ds1", "1.6.20~ds1-1+deb12u3"); got != (Found{Containerd, "1.6.20~ds1", "1.6.20~ds1-1+deb12u3"}) {
		t.Errorf("%+v", got)
	}
	if got := Daemon("v2.3.7", "0123456789abcdef0123456789abcdef01234567"); got.Package != "" {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		release, build, signature string
		want                      Found
	}{
		{"6.12.48+deb13-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.48-1 (2025-09-20)", "", Found{Linux, "6.12.48-1", ""}},
		{"6.8.0-45-generic", "#45-Ubuntu SMP PREEMPT_DYNAMIC", "Ubuntu 6.8.0-45.45-generic 6.8.12\n", Found{Linux, "6.8.12", "Ubuntu 6.8.0-45.45-generic"}},
		{"5.14.0-611.el9_7.x86_64", "#1 SMP", "", Found{Linux, "5.14.0-611.el9_7.x86_64", "5.14.0-611.el9_7.x86_64"}},
		{"6.18.44", "#1 SMP", "", Found{Linux, "6.18.44", ""}},
	} {
		if got := kernel(c.release, c.build, c.signature); got != c.want {
			t.Errorf("%s: %+v", c.release, got)
		}
	}
	if k, err := Kernel(); err != nil || k.Version == "" {
		t.Errorf("%+v, %v", k, err)
	}
}
