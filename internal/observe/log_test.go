package observe_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"code-execution-sandbox/internal/observe"
)

func TestLogKeepsTheOrder(t *testing.T) {
	var out bytes.Buffer
	l := observe.NewLog(&out, nil)
	var want strings.Builder
	for i := range 1000 {
		line := strings.Repeat("x", i%50) + "\n"
		want.WriteString(line)
		_, _ = io.WriteString(l, line)
	}
	l.Close()
	if out.String() != want.String() {
		t.Errorf("%d bytes written, want %d", out.Len(), want.Len())
	}
}

// A reader that takes nothing blocks nobody, and what waits is bounded.
func TestLogOfAStalledReader(t *testing.T) {
	r, w := io.Pipe()
	reg := prometheus.NewRegistry()
	l := observe.NewLog(w, reg)
	line := bytes.Repeat([]byte("x"), 1<<20)
	for range 100 {
		_, _ = l.Write(line)
	}
	for range 10_000 {
		_, _ = l.Write([]byte("short\n"))
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(families, err)
	}
	if dropped := families[0].GetMetric()[0].GetCounter().GetValue(); dropped < 80 {
		t.Errorf("%v lines dropped of 100 MiB that nobody reads", dropped)
	}
	l.Close() // within its grace
	_ = r.Close()
}
