// Package protection names what a host may lack of that which keeps programs
// in, finds out what this one lacks, and holds it against what the
// configuration allows. A protection that is missing stops the start, unless it
// is allowed by its name.
//
// Not named here are those that nobody can do without: the limits of memory,
// processes and processor time, the system call filter, the namespaces, the
// mounts. A host that cannot give them is refused whatever is allowed.
package protection

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Name is a protection's name, as in sandbox.allow_missing.
type Name string

// The protections that a host may lack.
const (
	// UserNamespaces give each sandbox user ids of its own.
	UserNamespaces Name = "user_namespaces"
	// AppArmor confines sandboxes once more, on hosts that have it.
	AppArmor Name = "apparmor"
	// SwapLimit keeps sandboxes out of the host's swap space.
	SwapLimit Name = "swap_limit"
	// TotalLimits bound all sandboxes together.
	TotalLimits Name = "total_limits"
)

// Names lists the protections.
func Names() []Name { return []Name{UserNamespaces, AppArmor, SwapLimit, TotalLimits} }

// Lack is a protection that a host does not give.
type Lack struct {
	Name Name
	// Why it is missing, and what to do about it.
	Why, Do string
}

func (l Lack) String() string { return fmt.Sprintf("%s: %s; %s", l.Name, l.Why, l.Do) }

// Host is what is looked at; the zero value is the running host.
type Host struct {
	// Root is put before every path, for tests.
	Root string
}

func (h Host) path(name string) string { return filepath.Join("/", h.Root, name) }

// HasAppArmor reports whether the kernel enforces AppArmor.
func (h Host) HasAppArmor() bool {
	raw, err := os.ReadFile(h.path("/sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.TrimSpace(string(raw)) == "Y"
}

// CheckAppArmor returns nil where a profile is enforced.
func (h Host) CheckAppArmor(profile string) *Lack {
	lack := &Lack{Name: AppArmor, Do: "load it, for example with systemd/apparmor.sh"}
	raw, err := os.ReadFile(h.path("/sys/kernel/security/apparmor/profiles"))
	if err != nil {
		lack.Why, lack.Do = "the list of loaded profiles cannot be read", "mount securityfs at /sys/kernel/security"
		return lack
	}
	// Lines such as "docker-default (enforce)".
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		switch name, mode, _ := strings.Cut(lines.Text(), " ("); {
		case name != profile:
		case mode == "enforce)":
			return nil
		default:
			lack.Why = fmt.Sprintf("the profile %s is in mode %s", profile, strings.TrimSuffix(mode, ")"))
			return lack
		}
	}
	lack.Why = fmt.Sprintf("the host has AppArmor, but the profile %s is not loaded", profile)
	return lack
}

// CheckUserNamespaces returns nil where a number of user namespaces can be
// made, by root.
func (h Host) CheckUserNamespaces(sandboxes int) *Lack {
	lack := &Lack{Name: UserNamespaces}
	if _, err := os.Stat(h.path("/proc/self/ns/user")); err != nil {
		lack.Why, lack.Do = "the kernel has none", "use a kernel with CONFIG_USER_NS"
		return lack
	}
	raw, err := os.ReadFile(h.path("/proc/sys/user/max_user_namespaces"))
	if err != nil {
		return nil // no limit that is known
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil && most < sandboxes {
		lack.Why = fmt.Sprintf("user.max_user_namespaces is %d, and %d may be needed", most, sandboxes)
		lack.Do = fmt.Sprintf("sysctl user.max_user_namespaces=%d", max(sandboxes, 1024))
		return lack
	}
	return nil
}

// Refused returns an error that names every lack that is not allowed.
func Refused(lacks []Lack, allowed []string) error {
	var errs []error
	for _, l := range lacks {
		if !slices.Contains(allowed, string(l.Name)) {
			errs = append(errs, fmt.Errorf("the protection %s is missing: %s; %s, or allow it with sandbox.allow_missing = [%q]", l.Name, l.Why, l.Do, l.Name))
		}
	}
	return errors.Join(errs...)
}
