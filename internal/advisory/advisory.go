// Package advisory knows faults of the runtime, of containerd and of the
// kernel that a version tells of: whether a program in a sandbox could use
// them, what keeps it from that, and what to do. The knowledge is data, in
// faults.toml.
//
// A version is all it looks at. Distributions put fixes into versions that
// were released without; where the data does not name such a package, the
// answer says that the fix may be there.
package advisory

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// The components that faults are known of.
const (
	Runc       = "runc"
	Containerd = "containerd"
	Linux      = "linux"
)

// Found is one component of this host.
type Found struct {
	// Component is one of the above, or another for which nothing is known.
	Component string
	// Version is the upstream version, with or without a distribution's own
	// letters behind it.
	Version string
	// Package is the version of the distribution's package, "" where it is not
	// known.
	Package string
}

func (f Found) String() string {
	if f.Package != "" && f.Package != f.Version {
		return fmt.Sprintf("%s %s (package %s)", f.Component, f.Version, f.Package)
	}
	return f.Component + " " + f.Version
}

// Fault is one known fault.
type Fault struct {
	ID        string      `toml:"id"`
	Component string      `toml:"component"`
	Affected  [][2]string `toml:"affected"`
	Kernel    [][2]string `toml:"kernel"`
	Packages  []string    `toml:"packages"`
	Cgroup    int         `toml:"cgroup"`
	// Approximate: some series have the fix in releases that are not recorded.
	Approximate bool `toml:"approximate"`
	// What goes wrong; KeptOut, why no program can use it here, "" where it
	// can matter; Do, what the operator can do.
	What    string `toml:"what"`
	KeptOut string `toml:"kept_out"`
	Do      string `toml:"do"`
}

// Finding is a fault that something found on this host has, by its version.
type Finding struct {
	Fault
	// In is what has it.
	In Found
	// MaybeFixed is set where a version alone cannot tell: the distribution may
	// have put the fix into it.
	MaybeFixed bool
}

func (f Finding) String() string {
	text := fmt.Sprintf("%s in %s: %s", f.ID, f.In, f.What)
	if f.KeptOut != "" {
		text += "; no program here can use it: " + f.KeptOut
	}
	text += "; " + f.Do
	if f.MaybeFixed {
		text += " (by its version; the distribution may have fixed it)"
	}
	return text
}

//go:embed faults.toml
var data string

// faults decodes and checks the data.
func faults(text string) ([]Fault, error) {
	var all struct {
		Fault []Fault `toml:"fault"`
	}
	meta, err := toml.Decode(text, &all)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, key := range meta.Undecoded() {
		errs = append(errs, fmt.Errorf("unknown key %s", key))
	}
	var ids []string
	for _, f := range all.Fault {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("fault %q: "+format, append([]any{f.ID}, args...)...))
		}
		if f.ID == "" || slices.Contains(ids, f.ID) {
			bad("the id is missing, or stands twice")
		}
		ids = append(ids, f.ID)
		if !slices.Contains([]string{Runc, Containerd, Linux}, f.Component) {
			bad("unknown component %q", f.Component)
		}
		if f.Cgroup < 0 || f.Cgroup > 2 {
			bad("there is no cgroup version %d", f.Cgroup)
		}
		if f.What == "" || f.Do == "" || len(f.Affected) == 0 {
			bad("what, do or affected is missing")
		}
		for _, ranges := range [][][2]string{f.Affected, f.Kernel} {
			if err := checkRanges(ranges); err != nil {
				bad("%w", err)
			}
		}
		for _, p := range f.Packages {
			if !distribution.MatchString(p) {
				bad("%q is not a distribution's package", p)
			}
		}
	}
	return all.Fault, errors.Join(errs...)
}

// checkRanges wants ranges in order, none of them empty.
func checkRanges(ranges [][2]string) error {
	last := version{}
	for i, r := range ranges {
		from, to := version{}, version{}
		var err error
		if r[0] != "" {
			if from, err = parseVersion(r[0]); err != nil {
				return err
			}
		}
		if r[1] == "" && i < len(ranges)-1 {
			return fmt.Errorf("nothing can follow a range without an end")
		}
		if r[1] != "" {
			if to, err = parseVersion(r[1]); err != nil {
				return err
			}
			if from.compare(to) >= 0 {
				return fmt.Errorf("%q to %q holds no version", r[0], r[1])
			}
		}
		if i > 0 && from.compare(last) < 0 {
			return fmt.Errorf("%q comes before the end of the range ahead of it", r[0])
		}
		last = to
	}
	return nil
}

func within(v version, ranges [][2]string) bool {
	for _, r := range ranges {
		from, _ := parseVersion(r[0]) // zero, the oldest, where there is none
		to, err := parseVersion(r[1])
		if v.compare(from) >= 0 && (err != nil || v.compare(to) < 0) {
			return true
		}
	}
	return false
}

// Look returns the known faults of what was found, on a host with a version
// of the cgroups. Those that can matter come first.
func Look(found []Found, cgroup int) ([]Finding, error) {
	known, err := faults(data)
	if err != nil {
		return nil, fmt.Errorf("read the list of known faults: %w", err)
	}
	return look(known, found, cgroup)
}

func look(known []Fault, found []Found, cgroup int) ([]Finding, error) {
	versions := map[string]version{}
	var errs []error
	for _, f := range found {
		v, err := parseVersion(f.Version)
		if err != nil {
			errs = append(errs, fmt.Errorf("version of %s: %w", f.Component, err))
			continue
		}
		versions[f.Component] = v
	}
	var out []Finding
	for _, in := range found {
		v, ok := versions[in.Component]
		if !ok {
			continue
		}
		for _, fault := range known {
			kernel, kernelKnown := versions[Linux]
			switch {
			case fault.Component != in.Component, !within(v, fault.Affected),
				fault.Cgroup != 0 && fault.Cgroup != cgroup,
				fault.Kernel != nil && (!kernelKnown || !within(kernel, fault.Kernel)),
				slices.ContainsFunc(fault.Packages, func(p string) bool { return since(in.Package, p) }):
				continue
			}
			// A distribution whose fixes are listed is taken at its word.
			listed := slices.ContainsFunc(fault.Packages, func(p string) bool { return sameSeries(in.Package, p) })
			out = append(out, Finding{
				Fault: fault, In: in,
				MaybeFixed: fault.Approximate || !listed && distribution.MatchString(in.Version+" "+in.Package),
			})
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return strings.Compare(boolKey(a), boolKey(b)) })
	return out, errors.Join(errs...)
}

// boolKey sorts what can matter first, and certainty before guesses.
func boolKey(f Finding) string {
	return fmt.Sprintf("%t%t", f.KeptOut != "", f.MaybeFixed)
}

// sameSeries reports whether two package versions differ in the count of
// updates alone.
func sameSeries(a, b string) bool {
	x, y := update.FindStringSubmatch(a), update.FindStringSubmatch(b)
	return x != nil && y != nil && x[1] == y[1]
}
