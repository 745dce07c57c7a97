package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	inst, err := newInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	held := lockPath(inst.dir)
	free := filepath.Join(dir, "free.lock")
	loop := filepath.Join(dir, "loop.lock")
	if err := errors.Join(os.WriteFile(free, nil, 0o600), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	for path, alive := range map[string]bool{
		held:                            true,
		free:                            false,
		filepath.Join(dir, "gone.lock"): false,
		// It cannot be opened, which says nothing of its owner.
		loop: true,
	} {
		if got := locked(path); got != alive {
			t.Errorf("locked(%s) = %v, want %v", filepath.Base(path), got, alive)
		}
	}
	if err := inst.close(); err != nil {
		t.Fatal(err)
	}
	if locked(held) {
		t.Error("an instance that has ended is alive")
	}
}

// sweeper is a sweep of a Runner that has these sandboxes.
func sweeper(ids ...string) *sweep {
	r := &Runner{instance: &instance{id: "ours"}, boxes: map[string]*box{}}
	for _, id := range ids {
		r.boxes[id] = &box{id: id}
	}
	return &sweep{r: r, dead: map[string]bool{"dead": true}, ours: map[string]bool{}}
}

// What ends in the usual way while a sweep looks at its list is no leftover.
func TestStray(t *testing.T) {
	s := sweeper("ours-ends", "ours-stays")
	s.know()
	delete(s.r.boxes, "ours-ends")
	s.r.boxes["ours-new"] = &box{}
	for id, want := range map[string]bool{
		"ours-ends": false, "ours-stays": false, "ours-new": false, "ours-given-up": true,
		"dead-1": true, "other-1": false,
	} {
		if got := s.stray(id); got != want {
			t.Errorf("stray(%s) = %v, want %v", id, got, want)
		}
	}
}

// A sandbox that could not be removed is given to one remover at a time, or its
// room would come back twice.
func TestReclaimedOnce(t *testing.T) {
	r := sweeper("lost", "well", "being-removed").r
	r.boxes["lost"].lost = errors.New("busy")
	r.boxes["being-removed"].lost, r.boxes["being-removed"].removing = errors.New("busy"), true
	if got := r.reclaim(); len(got) != 1 || got[0].id != "lost" {
		t.Errorf("reclaimed %v, want the one that is lost", got)
	}
	if got := r.reclaim(); len(got) != 0 {
		t.Errorf("reclaimed %v a second time", got)
	}
}
