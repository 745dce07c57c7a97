package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/httpserver"
	"code-execution-sandbox/internal/observe"
	"code-execution-sandbox/internal/protection"
	"code-execution-sandbox/internal/runner"
)

// protect finds out what this host lacks of the protections that it may lack,
// and makes the sandboxes' parent cgroup. What is missing and not allowed is an
// error.
func (h *host) protect() error {
	s := h.cfg.Sandbox
	var here protection.Host
	add := func(lack *protection.Lack) {
		if lack != nil {
			h.lacks = append(h.lacks, *lack)
		}
	}
	if s.UserNamespace {
		add(here.CheckUserNamespaces(h.rooms()))
	}
	if s.AppArmorProfile != "" && h.canConfine() {
		add(here.CheckAppArmor(s.AppArmorProfile))
	}
	total, err := h.total()
	if err != nil {
		return err
	}
	parent := h.cgroups.Group(s.CgroupParent)
	if err := parent.Bound(total); err != nil {
		add(&protection.Lack{Name: protection.TotalLimits, Why: err.Error(), Do: "set sandbox.cgroup_parent to a group that has the controllers memory, pids and cpu and no processes above it"})
	} else if !parent.LimitsSwap() {
		add(&protection.Lack{
			Name: protection.SwapLimit, Why: "the kernel does not account for swap space",
			Do: "boot it with swapaccount=1; without swap space it is safe to allow",
		})
	}
	return protection.Refused(h.lacks, s.AllowMissing)
}

// canConfine reports whether an AppArmor profile does anything here: gVisor takes
// no notice of it, and no program meets the host's kernel there.
func (h *host) canConfine() bool {
	return (protection.Host{}).HasAppArmor() && !runner.SecondKernel(h.cfg.Containerd.Runtime)
}

// off names the protections that the configuration itself switches off.
func (h *host) off() []string {
	var out []string
	if !h.cfg.Sandbox.UserNamespace {
		out = append(out, string(protection.UserNamespaces))
	}
	if h.cfg.Sandbox.AppArmorProfile == "" && h.canConfine() {
		out = append(out, string(protection.AppArmor))
	}
	return out
}

// missing names the protections that are not there.
func (h *host) missing() []string {
	out := h.off()
	for _, l := range h.lacks {
		out = append(out, string(l.Name))
	}
	return out
}

// lack reports whether a protection is not there.
func (h *host) lack(name protection.Name) bool { return slices.Contains(h.missing(), string(name)) }

// rooms is how many sandboxes can exist at a time.
func (h *host) rooms() int {
	return runner.Rooms(h.cfg.Sandbox.MaxConcurrent, h.cfg.Pool.Python+h.cfg.Pool.Bash)
}

const (
	// The host keeps a tenth of its memory to itself, and at least this.
	memoryReserve = 256 << 20
	// totalWeight is the sandboxes' share against the host's own services, in
	// percent: with all of them busy, the server still has to answer.
	totalWeight = 50
)

// total bounds all sandboxes together: by what they may hold one by one, and by
// what the host can spare. All commands with one configuration say the same.
func (h *host) total() (cgroup.Total, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return cgroup.Total{}, fmt.Errorf("size of the host's memory: %w", err)
	}
	have := int64(info.Totalram) * int64(info.Unit) //nolint:gosec // bytes of memory
	spare := have - max(have/10, memoryReserve)
	s := h.cfg.Sandbox
	return cgroup.Total{
		Memory: min(int64(h.rooms())*int64(s.MemoryLimit), max(spare, int64(s.MemoryLimit))),
		PIDs:   int64(h.rooms() * s.PIDsLimit),
		Weight: totalWeight,
	}, nil
}

// checkProtections looks for what this host lacks.
func (h *host) checkProtections(out *report) {
	if err := h.protect(); err != nil {
		out.add("protections", err, "")
		return
	}
	var told []error
	for _, name := range h.off() {
		told = append(told, fmt.Errorf("%s is switched off in the configuration", name))
	}
	for _, l := range h.lacks {
		told = append(told, fmt.Errorf("%s is missing, as allowed: %s", l.Name, l.Why))
	}
	if err := errors.Join(told...); err != nil {
		out.warn("protections", err)
		return
	}
	confined := "the host has no AppArmor"
	if runner.SecondKernel(h.cfg.Containerd.Runtime) {
		confined = "gVisor's kernel between programs and the host's"
	}
	if profile := h.runnerOptions().AppArmorProfile; profile != "" {
		confined = "AppArmor with the profile " + profile
	}
	out.add("protections", nil, "user namespaces, no swap space, limits of all sandboxes together; %s", confined)
}

// logProtections tells what is not there.
func (h *host) logProtections() {
	for _, name := range h.off() {
		h.log.Warn("a protection is switched off", "name", name)
	}
	for _, l := range h.lacks {
		h.log.Warn("a protection is missing, as allowed", "name", string(l.Name), "why", l.Why, "do", l.Do)
	}
}

// healthDetail is what /healthz tells beside that all is well.
func (h *host) healthDetail(r *runner.Runner) func() httpserver.HealthDetail {
	missing := h.missing()
	return func() httpserver.HealthDetail {
		at, err := r.Proof()
		if err != nil {
			at = time.Time{} // a failure is told by its own answer
		}
		return httpserver.HealthDetail{Missing: missing, SelfTest: at.UTC().Truncate(time.Second)}
	}
}

// registerProtections shows what is missing, and the self-test, as gauges.
func (h *host) registerProtections(reg prometheus.Registerer, r *runner.Runner) {
	missing := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: observe.Namespace, Name: "missing_protections",
		Help: "1 for each protection that this host lacks, as the configuration allows, else 0.",
	}, []string{"name"})
	for _, name := range protection.Names() {
		missing.WithLabelValues(string(name)).Set(map[bool]float64{true: 1}[h.lack(name)])
	}
	reg.MustRegister(missing,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: observe.Namespace, Name: "selftest_success",
			Help: "Whether the last sandbox that was put to the proof had all its protections.",
		}, func() float64 {
			at, err := r.Proof()
			return map[bool]float64{true: 1}[err == nil && !at.IsZero()]
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: observe.Namespace, Name: "selftest_timestamp_seconds",
			Help: "When that was, in seconds since 1970; 0 before the first.",
		}, func() float64 {
			at, _ := r.Proof()
			return max(0, float64(at.Unix()))
		}),
	)
}
