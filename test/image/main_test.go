// Package image runs what models write on the image that is served: every
// library and tool does some real work in a real sandbox, as configured by
// default and without a word on standard error.
package image

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
	"code-execution-sandbox/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, harness.Image(harness.Full))) }

// options are the defaults of a server; harness.Limits has less memory.
func options(t *testing.T) runner.Options {
	t.Helper()
	opts := harness.Options(t)
	opts.Limits.Memory = 1 << 30
	return opts
}

// served is the image that the tests run on.
func served(t *testing.T) image.Image {
	t.Helper()
	img, err := image.Find(t.Context(), harness.Client(), harness.ImageName, "overlayfs")
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// program is what a model might send, and what comes of it. Its exit code is 0
// and its standard error empty.
type program struct {
	// of names what it stands for, space between: names as the model reads
	// them in the tool's description, or others.
	of          string
	language    sandbox.Language
	code, stdin string
	stdout      string
}

// runAll runs each program as a test of its own, two at a time.
func runAll(t *testing.T, r sandbox.Executor, programs []program) {
	t.Helper()
	slots := make(chan struct{}, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range programs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t.Run(string(p.language)+" "+strings.ReplaceAll(p.of, " ", ","), func(t *testing.T) { p.run(t, r) })
		})
	}
}

func (p program) run(t *testing.T, r sandbox.Executor) {
	t.Helper()
	res := harness.Run(t, r, sandbox.Request{ID: "test", Language: p.language, Code: p.code, Stdin: []byte(p.stdin), Timeout: time.Minute})
	if res.Status != sandbox.StatusExited || res.ExitCode != 0 || string(res.Stdout) != p.stdout || len(res.Stderr) > 0 {
		t.Errorf("%s %d\nstdout:\n%s\nwant:\n%s\nstderr:\n%s", res.Status, res.ExitCode, res.Stdout, p.stdout, res.Stderr)
	}
}
