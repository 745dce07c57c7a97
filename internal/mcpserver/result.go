package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"code-execution-sandbox/internal/sandbox"
)

// metaKey is the key in a result's _meta under which its status stands for
// programs: an object with status, exit_code, timed_out, oom_killed, truncated,
// duration_ms and queued_ms, or with error and request_id. Never output: some clients
// pass _meta on to the model.
const metaKey = "code-execution-sandbox/result"

// success is the result of a call whose program ran, however it ended. A
// non-zero exit is not an error, and neither is a death by a signal or at the
// memory limit: `grep` without a match and failing tests are answers.
func (s *Server) success(ctx context.Context, r *sandbox.Result) *mcp.CallToolResult {
	stdout := show(r.Stdout, r.StdoutHead, r.StdoutBytes, s.opts.MaxStdoutChars)
	stderr := show(r.Stderr, r.StderrHead, r.StderrBytes, s.opts.MaxStderrChars)
	out := &mcp.CallToolResult{
		IsError: r.Status == sandbox.StatusTimedOut || r.Status == sandbox.StatusCanceled,
		Content: []mcp.Content{&mcp.TextContent{Text: s.text(ctx, r, stdout, stderr)}},
		Meta: mcp.Meta{metaKey: map[string]any{
			"status":      r.Status,
			"exit_code":   r.ExitCode,
			"timed_out":   r.Status == sandbox.StatusTimedOut,
			"oom_killed":  r.OOMKilled,
			"truncated":   stdout.cut || stderr.cut,
			"duration_ms": r.Duration.Milliseconds(),
			"queued_ms":   r.Queued.Milliseconds(),
		}},
	}
	if s.opts.Structured {
		out.StructuredContent = newStructured(r)
	}
	return out
}

// text lays a result out. The status comes first, where no program can forge
// it. Standard error comes last: it holds the traceback, and clients that cut
// cut the middle.
func (s *Server) text(ctx context.Context, r *sandbox.Result, stdout, stderr shown) string {
	var b strings.Builder
	b.WriteString(s.status(ctx, r))
	b.WriteByte('\n')
	if r.StdoutBytes == 0 && r.StderrBytes == 0 {
		b.WriteString("(no output)\n")
	}
	for _, stream := range []struct {
		name  string
		bytes int64
		shown shown
	}{
		{"stdout", r.StdoutBytes, stdout},
		{"stderr", r.StderrBytes, stderr},
	} {
		if stream.bytes == 0 {
			continue
		}
		notes := stream.shown.notes
		if stream.shown.cut {
			notes = append([]string{"cut in the middle"}, notes...)
		}
		b.WriteString(stream.name)
		if len(notes) > 0 {
			fmt.Fprintf(&b, " (%s)", strings.Join(notes, "; "))
		}
		b.WriteString(":\n")
		b.WriteString(stream.shown.text)
		if !strings.HasSuffix(stream.shown.text, "\n") {
			b.WriteByte('\n')
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// status says in one line how the program ended, and why.
func (s *Server) status(ctx context.Context, r *sandbox.Result) string {
	limit := "memory limit of " + size(s.opts.Limits.Memory)
	oom := ""
	switch {
	case r.OOMElsewhere:
		limit = "the host ran out of memory, try again"
		oom = "a process was killed: " + limit
	case r.OOMKilled || r.Status == sandbox.StatusOutOfMemory:
		oom = "a process was killed at the " + limit
	}
	switch r.Status {
	case sandbox.StatusTimedOut:
		advice := fmt.Sprintf("raise timeout_seconds, at most %d", seconds(s.opts.Limits.MaxTimeout))
		if r.Timeout >= s.opts.Limits.MaxTimeout {
			advice = "the longest allowed"
		}
		return "timed_out: " + because(fmt.Sprintf("killed after %d s", seconds(r.Timeout)), advice, oom)
	case sandbox.StatusCanceled:
		if notReady, ok := errors.AsType[*sandbox.NotReadyError](context.Cause(ctx)); ok {
			return "canceled: " + notReady.Reason + "; the program was killed"
		}
		return "canceled: the caller withdrew the call; the program was killed"
	}
	how := ""
	if r.Signal != 0 && oom == "" {
		how = "killed by " + signalName(r.Signal)
	}
	if r.Status == sandbox.StatusOutOfMemory && r.Signal == int(unix.SIGKILL) {
		how, oom = "killed: "+limit, ""
	}
	return because(fmt.Sprintf("exit_code: %d", r.ExitCode), how, oom)
}

// because adds the reasons that are not empty in parentheses.
func because(what string, reasons ...string) string {
	var given []string
	for _, reason := range reasons {
		if reason != "" {
			given = append(given, reason)
		}
	}
	if len(given) == 0 {
		return what
	}
	return what + " (" + strings.Join(given, "; ") + ")"
}

// signalName writes signal 11 as SIGSEGV, segmentation fault, and 15 as SIGTERM:
// one word would only say the name again.
func signalName(n int) string {
	name := unix.SignalName(syscall.Signal(n))
	if name == "" { // the real-time signals have none
		return fmt.Sprintf("signal %d", n)
	}
	if words := syscall.Signal(n).String(); strings.Contains(words, " ") {
		name += ", " + words
	}
	return name
}

// structured is a result for programs. Output is what was kept of it, not cut
// to what a model should read.
type structured struct {
	ExitCode    int            `json:"exit_code"`
	Stdout      string         `json:"stdout"`
	Stderr      string         `json:"stderr"`
	TimedOut    bool           `json:"timed_out"`
	Truncated   bool           `json:"truncated"`
	DurationMS  int64          `json:"duration_ms"`
	QueuedMS    int64          `json:"queued_ms"`
	Status      sandbox.Status `json:"status"`
	Signal      int            `json:"signal"`
	OOMKilled   bool           `json:"oom_killed"`
	StdoutBytes int64          `json:"stdout_bytes"`
	StderrBytes int64          `json:"stderr_bytes"`
}

func newStructured(r *sandbox.Result) structured {
	return structured{
		ExitCode:    r.ExitCode,
		Stdout:      keptText(r.Stdout, r.StdoutHead, r.StdoutBytes),
		Stderr:      keptText(r.Stderr, r.StderrHead, r.StderrBytes),
		TimedOut:    r.Status == sandbox.StatusTimedOut,
		Truncated:   r.Truncated(),
		DurationMS:  r.Duration.Milliseconds(),
		QueuedMS:    r.Queued.Milliseconds(),
		Status:      r.Status,
		Signal:      r.Signal,
		OOMKilled:   r.OOMKilled,
		StdoutBytes: r.StdoutBytes,
		StderrBytes: r.StderrBytes,
	}
}

// keptText is all that was kept of a stream, as valid UTF-8, its gap marked.
func keptText(kept []byte, head int, total int64) string {
	before, after, lost := split(kept, head, total)
	text := strings.ToValidUTF8(string(before), "\uFFFD")
	if lost > 0 {
		text = join(text, omission("", lost), strings.ToValidUTF8(string(after), "\uFFFD"))
	}
	return text
}

// outputSchema describes structured.
var outputSchema = json.RawMessage(`{"type":"object","properties":{` +
	`"exit_code":{"type":"integer","description":"What the program ended with; 128+n when signal n ended it."},` +
	`"stdout":{"type":"string"},` +
	`"stderr":{"type":"string"},` +
	`"timed_out":{"type":"boolean","description":"Whether the program was killed at its time limit."},` +
	`"truncated":{"type":"boolean","description":"Whether the middle of stdout or stderr is missing."},` +
	`"duration_ms":{"type":"integer"},` +
	`"queued_ms":{"type":"integer","description":"How long the call waited for others to end, before duration_ms."},` +
	`"status":{"type":"string","enum":["exited","signaled","timed_out","out_of_memory","canceled"]},` +
	`"signal":{"type":"integer","description":"The number of the signal that ended the program, 0 if none did."},` +
	`"oom_killed":{"type":"boolean","description":"Whether a process was killed for want of memory."},` +
	`"stdout_bytes":{"type":"integer","description":"Bytes printed in all, also those not kept."},` +
	`"stderr_bytes":{"type":"integer"}},` +
	`"required":["exit_code","stdout","stderr","timed_out","truncated","duration_ms","queued_ms","status","signal","oom_killed","stdout_bytes","stderr_bytes"]}`)
