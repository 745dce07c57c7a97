package main

import (
	"strconv"
	"strings"
	"testing"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/protection"
)

// TestAllowMissing: what the configuration allows to be missing are the
// protections that are looked for.
func TestAllowMissing(t *testing.T) {
	for _, key := range config.Keys() {
		if key.Name != "sandbox.allow_missing" {
			continue
		}
		for _, name := range protection.Names() {
			if !strings.Contains(key.Allowed, strconv.Quote(string(name))) {
				t.Errorf("%s cannot be allowed: %s", name, key.Allowed)
			}
		}
		if got := strings.Count(key.Allowed, `"`) / 2; got != len(protection.Names()) {
			t.Errorf("%d names are allowed, and %d are looked for", got, len(protection.Names()))
		}
		return
	}
	t.Error("no such key")
}

func TestTotal(t *testing.T) {
	cfg := config.Default()
	h := host{cfg: cfg}
	total, err := h.total()
	if err != nil {
		t.Fatal(err)
	}
	if total.Memory < int64(cfg.Sandbox.MemoryLimit) || total.Memory > int64(h.rooms())*int64(cfg.Sandbox.MemoryLimit) {
		t.Errorf("%d bytes for %d sandboxes", total.Memory, h.rooms())
	}
	h.cfg.Sandbox.MemoryLimit = 1 << 50 // more than any host has
	if total, _ := h.total(); total.Memory != 1<<50 {
		t.Errorf("one sandbox cannot have what it may have: %d", total.Memory)
	}
	h.cfg.Sandbox.MemoryLimit = 1 << 40 >> 10
	h.cfg.Sandbox.MaxConcurrent = 256
	huge, err := h.total()
	if err != nil || huge.Memory >= int64(h.rooms())<<30 {
		t.Errorf("the host has nothing left: %d, %v", huge.Memory, err)
	}
}
