package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// What is worth an operator's eye is a warning, whoever of the children says it
// and in whatever format.
func TestJournal(t *testing.T) {
	for line, want := range map[string]slog.Level{
		`{"level":"info","msg":"starting containerd"}`:                                    slog.LevelDebug,
		`{"level":"warning","msg":"no aufs"}`:                                             slog.LevelDebug,
		`{"level":"error","msg":"no space left"}`:                                         slog.LevelWarn,
		`time="2026-01-02T03:04:05Z" level=info msg="starting signal loop"`:               slog.LevelDebug,
		`time="2026-01-02T03:04:05Z" level=warning msg="deprecated"`:                      slog.LevelDebug,
		`time="2026-01-02T03:04:05Z" level=error msg="cannot say level=info of \"this\""`: slog.LevelWarn,
		`panic: runtime error`:                                                            slog.LevelWarn,
	} {
		var out bytes.Buffer
		j := &journal{daemon: &Daemon{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))}}
		// In two parts, as a pipe may give it.
		_, _ = fmt.Fprint(j, line[:10])
		_, _ = fmt.Fprintln(j, line[10:])
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level="+want.String()+" ") {
			t.Errorf("%s is logged as %q, want level %v", line, got, want)
		}
	}
}
