package advisory

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// version is an upstream version: numbers, and the stage before the release.
type version struct {
	numbers []int
	// stage is "alpha", "beta" or "rc", and "" for the release; stages sort
	// before it.
	stage string
	step  int
}

// upstream matches what every spelling begins with: "v1.4.0-rc.3", Debian's
// "1.6.20~ds1" and "1.4.0~rc3", a kernel's "6.12.48+deb13-amd64".
var upstream = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:[-~]?(alpha|beta|rc)[.-]?([0-9]+))?`)

func parseVersion(s string) (version, error) {
	m := upstream.FindStringSubmatch(s)
	if m == nil {
		return version{}, fmt.Errorf("%q is not a version", s)
	}
	v := version{stage: m[2]}
	for n := range strings.SplitSeq(m[1], ".") {
		number, err := strconv.Atoi(n)
		if err != nil {
			return version{}, fmt.Errorf("%q is not a version: %w", s, err)
		}
		v.numbers = append(v.numbers, number)
	}
	v.step, _ = strconv.Atoi(m[3])
	return v, nil
}

// compare is negative where v is older than w. Missing numbers are zeros.
func (v version) compare(w version) int {
	for i := range max(len(v.numbers), len(w.numbers)) {
		if c := cmp.Compare(at(v.numbers, i), at(w.numbers, i)); c != 0 {
			return c
		}
	}
	stages := []string{"alpha", "beta", "rc", ""}
	return cmp.Or(cmp.Compare(slices.Index(stages, v.stage), slices.Index(stages, w.stage)), cmp.Compare(v.step, w.step))
}

func at(numbers []int, i int) int {
	if i < len(numbers) {
		return numbers[i]
	}
	return 0
}

// update matches the end of a distribution's package version that counts its
// updates within one release: +deb12u3, ~deb11u1, ubuntu0.22.04.2, ubuntu3.
var update = regexp.MustCompile(`^(.*(?:[+~]deb[0-9]+u|ubuntu[0-9.]*?))([0-9]+)$`)

// since reports whether a package is the other one, or a later update of it.
func since(pkg, first string) bool {
	p, f := update.FindStringSubmatch(pkg), update.FindStringSubmatch(first)
	if p == nil || f == nil {
		return pkg == first
	}
	have, _ := strconv.Atoi(p[2])
	want, _ := strconv.Atoi(f[2])
	return p[1] == f[1] && have >= want
}

// distribution matches what only a distribution's package version has.
var distribution = regexp.MustCompile(`[0-9](\+ds|~ds|\+dfsg|[+~]deb[0-9]|-[0-9.]*ubuntu|\.el[0-9]|\.fc[0-9])|[Uu]buntu`)
