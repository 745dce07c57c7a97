package protection

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a host made of files.
func fake(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Host{Root: root}
}

func TestAppArmor(t *testing.T) {
	const enabled, profiles = "sys/module/apparmor/parameters/enabled", "sys/kernel/security/apparmor/profiles"
	for _, c := range []struct {
		name  string
		files map[string]string
		has   bool
		want  string // of the lack; "" for none
	}{
		{"no AppArmor", nil, false, "cannot be read"},
		{"switched off", map[string]string{enabled: "N\n"}, false, "cannot be read"},
		{"securityfs not mounted", map[string]string{enabled: "Y\n"}, true, "cannot be read"},
		{"not loaded", map[string]string{enabled: "Y\n", profiles: "ours-too (enforce)\n/usr/bin/man (enforce)\n"}, true, "not loaded"},
		{"loaded", map[string]string{enabled: "Y\n", profiles: "docker-default (enforce)\nours (enforce)\n"}, true, ""},
		{"complains", map[string]string{enabled: "Y\n", profiles: "ours (complain)\n"}, true, "mode complain"},
	} {
		h := fake(t, c.files)
		if got := h.HasAppArmor(); got != c.has {
			t.Errorf("%s: HasAppArmor is %t", c.name, got)
		}
		lack := h.CheckAppArmor("ours")
		if (lack == nil) != (c.want == "") || lack != nil && (!strings.Contains(lack.Why, c.want) || lack.Name != AppArmor || lack.Do == "") {
			t.Errorf("%s: %v", c.name, lack)
		}
	}
}

func TestUserNamespaces(t *testing.T) {
	const has, most = "proc/self/ns/user", "proc/sys/user/max_user_namespaces"
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{nil, "has none"},
		{map[string]string{has: ""}, ""},
		{map[string]string{has: "", most: "100\n"}, ""},
		{map[string]string{has: "", most: "0\n"}, "is 0, and 13"},
	} {
		lack := fake(t, c.files).CheckUserNamespaces(13)
		if (lack == nil) != (c.want == "") || lack != nil && !strings.Contains(lack.Why, c.want) {
			t.Errorf("%v: %v", c.files, lack)
		}
	}
	if lack := (Host{}).CheckUserNamespaces(1); lack != nil {
		t.Log("this host:", lack)
	}
}

func TestRefused(t *testing.T) {
	lacks := []Lack{{AppArmor, "why", "do"}, {SwapLimit, "why", "do"}}
	if err := Refused(lacks, []string{"swap_limit", "apparmor"}); err != nil {
		t.Error(err)
	}
	err := Refused(lacks, []string{"swap_limit", "total_limits"})
	if err == nil || !strings.Contains(err.Error(), `allow it with sandbox.allow_missing = ["apparmor"]`) || strings.Contains(err.Error(), "swap_limit is missing") {
		t.Error(err)
	}
	if err := Refused(nil, nil); err != nil {
		t.Error(err)
	}
}
