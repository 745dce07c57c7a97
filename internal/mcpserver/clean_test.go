package mcpserver

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, test := range []struct {
		name, in, want string
		notes          []string
	}{
		{"plain", "a\tb\nc\n", "a\tb\nc\n", nil},
		{"unicode", "žluťoučký 🐎\n", "žluťoučký 🐎\n", nil},
		{"not UTF-8", "\xff\xfe\x00a", "\uFFFDa", []string{"1 NUL byte left out", "2 bytes not UTF-8"}},
		{"a real U+FFFD", "\uFFFD", "\uFFFD", nil},
		{"surrogate halves", "\xed\xa0\x80x", "\uFFFDx", []string{"3 bytes not UTF-8"}},
		{"C0 and DEL", "a\x01\x02\x07\x0b\x0c\x7fb", "ab", nil},
		{"C1", "a\u0085\u009bb", "ab", nil},
		{"colours", "\x1b[1;31mred\x1b[0m plain", "red plain", nil},
		{"cursor", "\x1b[2J\x1b[H\x1b[?25lx", "x", nil},
		{"title", "\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink", nil},
		{"device control", "\x1bPq#0\x1b\\x", "x", nil},
		{"short sequences", "\x1b(Ba\x1b7b\x1bMc\x1b=d", "abcd", nil},
		{"title without end", "\x1b]0;x\nnext", "0;x\nnext", nil},
		{"title cut by another", "\x1b]0;x\x1b[31mred", "0;xred", nil},
		{"escape at the end", "x\x1b", "x", nil},
		{"sequence at the end", "x\x1b[31", "x", nil},
		{"escape before text", "\x1b\x1b[31mx", "x", nil},
		{"CRLF", "a\r\nb\r\r\nc", "a\nb\nc", nil},
		{"progress", "10%\r50%\r100%\ndone\n", "100%\ndone\n", []string{"2 lines overwritten with \\r left out"}},
		{"progress with erase", "10%\r\x1b[K50%\r\n", "50%\n", []string{"1 line overwritten with \\r left out"}},
		{"return at the end", "50%\r", "50%", nil},
		{"backspaces", "|\b/\b-\b\bé\bdone", "done", nil},
		{"backspace stays in its line", "a\n\b\bb", "a\nb", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c cleaner
			if got := c.clean([]byte(test.in)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if notes := c.notes(); !slices.Equal(notes, test.notes) {
				t.Errorf("got notes %q, want %q", notes, test.notes)
			}
		})
	}
}

func TestShow(t *testing.T) {
	lines := func(from, to int) string {
		var b strings.Builder
		for i := from; i <= to; i++ {
			fmt.Fprintf(&b, "line %d\n", i)
		}
		return b.String()
	}
	const advice = "; print less or filter with grep, head or tail ...]\n"
	for _, test := range []struct {
		name  string
		kept  string
		head  int
		total int64
		max   int
		want  string
		cut   bool
		notes []string
	}{
		{name: "all", kept: "abc\n", head: 4, total: 4, max: 4, want: "abc\n"},
		{name: "nothing", total: 0, max: 4, want: ""},
		{name: "only controls", kept: "\x1b[0m", head: 4, total: 4, max: 4, notes: []string{"nothing but control characters"}},
		{
			name: "line borders", kept: lines(1, 1000), head: 8893, total: 8893, max: 100, cut: true,
			want: lines(1, 7) + "[... omitted: 988 lines / 8,798 characters" + advice + lines(996, 1000),
		},
		{
			name: "one long line", kept: strings.Repeat("ž", 1000), head: 2000, total: 2000, max: 10, cut: true,
			want: "žžžžž\n[... omitted: 990 characters" + advice + "žžžžž",
		},
		{
			name: "gap in short text", kept: "headtail", head: 4, total: 1008, max: 100, cut: true,
			want: "head\n[... omitted: 1,000 bytes that were not kept" + advice + "tail",
		},
		{
			name: "gap in long text", kept: lines(1, 100) + lines(901, 1000), head: 792, total: 8893, max: 100, cut: true,
			want: lines(1, 7) + "[... omitted: 188 lines / 1,598 characters and 7,200 bytes that were not kept" + advice + lines(996, 1000),
		},
		{
			name: "gap in characters", kept: "a\xc5\xbee", head: 2, total: 1004, max: 100, cut: true,
			want: "a\n[... omitted: 1,002 bytes that were not kept" + advice + "e",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := show([]byte(test.kept), test.head, test.total, test.max)
			if got.text != test.want {
				t.Errorf("got  %q\nwant %q", got.text, test.want)
			}
			if got.cut != test.cut || !slices.Equal(got.notes, test.notes) {
				t.Errorf("got cut %v and notes %q, want %v and %q", got.cut, got.notes, test.cut, test.notes)
			}
		})
	}
}

// Whatever was printed, the text is short, valid, and free of control characters.
func FuzzShow(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\r\nc\xffd\x00"), 3, int64(100), 10)
	f.Fuzz(func(t *testing.T, kept []byte, head int, lost int64, max int) {
		head = min(int(uint(head)%(uint(len(kept))+1)), len(kept))
		max = int(uint(max) % 1000)
		if lost = min(lost&0xffffff, 1<<20); lost == 0 {
			head = len(kept)
		}
		got := show(kept, head, int64(len(kept))+lost, max)
		if n := utf8.RuneCountInString(got.text); n > max+200 {
			t.Errorf("%d characters, the bound is %d", n, max)
		}
		if !utf8.ValidString(got.text) {
			t.Errorf("%q is not valid UTF-8", got.text)
		}
		if i := strings.IndexFunc(got.text, func(r rune) bool { return r < 0x20 && r != '\t' && r != '\n' || 0x7f <= r && r < 0xa0 }); i >= 0 {
			t.Errorf("control character at %d of %q", i, got.text)
		}
		if lost > 0 && !got.cut {
			t.Error("bytes were lost and the text does not say so")
		}
	})
}

func BenchmarkShow(b *testing.B) {
	for name, kept := range map[string][]byte{
		"text":    bytes.Repeat([]byte("a line of ordinary output, number 12345\n"), 1<<20/40),
		"escapes": bytes.Repeat([]byte("\x1b]"), 1<<19),
		"binary":  bytes.Repeat([]byte("\xff\xfe\x00a\r"), 1<<20/5),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(kept)))
			for b.Loop() {
				show(kept, len(kept), int64(len(kept)), 16_000)
			}
		})
	}
}
