package image

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/image"
	"code-execution-sandbox/test/harness"
)

// A new image is taken up while the server runs: a call that is running ends on
// the old one, the next uses the new one, and the model is told anew.
func TestImageIsSwappedWhileServing(t *testing.T) {
	const name = "code-execution-sandbox-test-swap:latest"
	ctx := t.Context()
	// The full image under a name of its own, as if it had been imported so.
	images := harness.Client().ImageService()
	record, err := images.Get(ctx, harness.ImageName)
	if err != nil {
		t.Fatal(err)
	}
	record.Name = name
	if _, err := images.Create(ctx, record); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := image.Remove(context.WithoutCancel(ctx), harness.Client(), name); err != nil {
			t.Error(err)
		}
	})
	if out, err := exec.CommandContext(ctx, "docker", "tag", harness.Slim, name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", name).Run() })

	opts := options(t)
	config := "[pool]\npython = 1\nbash = 1\n[sandbox]\nimage = \"" + name + "\"\n"
	s := harness.Serve(t, opts, config)
	session := s.Connect(t)
	const look = "try:\n    import numpy; print('=full=')\nexcept ImportError: print('=slim=')\n"
	call := func(code string) string {
		res, err := harness.Call(ctx, session, map[string]any{"language": "python", "code": code, "timeout_seconds": 60})
		if err != nil {
			t.Error(err)
			return ""
		}
		return harness.Text(t, res)
	}
	if text := call(look); !strings.Contains(text, "=full=") {
		t.Fatal(text)
	}
	running := make(chan string, 1)
	go func() { running <- call("import time\nprint('started', flush=True)\ntime.sleep(20)\n" + look) }()
	started := time.Now()

	cmd := exec.CommandContext(ctx, harness.Binary(), "image", "import", "--config", harness.Config(t, opts, config))
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "replaced") {
		t.Fatalf("import: %v: %s", err, out)
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(call(look), "=slim="); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the new image is never used")
		}
	}
	t.Logf("the new image is used %v after the call on the old one began", time.Since(started).Round(time.Millisecond))
	select {
	case text := <-running:
		t.Errorf("the call that was running has ended already: %s", text)
	default:
	}
	tools, err := session.ListTools(ctx, &mcp.ListToolsParams{})
	if err != nil || !strings.Contains(tools.Tools[0].Description, "standard library only") {
		t.Errorf("the model is not told of the new image: %v\n%s", err, tools.Tools[0].Description)
	}
	if text := <-running; !strings.Contains(text, "=full=") || !strings.Contains(text, "exit_code: 0") {
		t.Errorf("the call on the old image: %s", text)
	}
	if !strings.Contains(call(look), "=slim=") {
		t.Error("the old image is used again")
	}
}
