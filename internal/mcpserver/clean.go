package mcpserver

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// shown is a stream as the model sees it.
type shown struct {
	text  string
	cut   bool     // something that was printed is missing in the middle
	notes []string // what else differs from what was printed
}

// show turns what was kept of a stream into text of about max characters: its
// control characters cleaned, and its middle left out when it is too long. Of
// the total bytes printed, those missing from kept belong at offset head.
func show(kept []byte, head int, total int64, max int) shown {
	before, after, lost := split(kept, head, total)
	var c cleaner
	a, b := c.clean(before), c.clean(after)
	out := shown{notes: c.notes()}
	if lost == 0 && utf8.RuneCountInString(a) <= max {
		out.text = a
		if a == "" && total > 0 && len(out.notes) == 0 {
			out.notes = append(out.notes, "nothing but control characters")
		}
		return out
	}
	first := firstPart(a, max/2)
	omitted := a[len(first):]
	if lost == 0 {
		b, omitted = omitted, ""
	}
	last := lastPart(b, max-max/2)
	omitted += b[:len(b)-len(last)]

	out.cut = true
	out.text = join(first, omission(omitted, lost), last)
	return out
}

// split parts what was kept at its gap and counts the bytes in it. Characters
// that the gap tore apart are counted as lost.
func split(kept []byte, head int, total int64) (before, after []byte, lost int64) {
	lost = total - int64(len(kept))
	if lost <= 0 {
		return kept, nil, 0
	}
	before, after = kept[:head], kept[head:]
	for n := 1; n < utf8.UTFMax && n <= len(before); n++ {
		if end := before[len(before)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				before = before[:len(before)-n]
				lost += int64(n)
			}
			break
		}
	}
	for n := 1; n < utf8.UTFMax && len(after) > 0 && !utf8.RuneStart(after[0]); n++ {
		after = after[1:]
		lost++
	}
	return before, after, lost
}

// omission says in words what is missing: characters of what was kept, and
// bytes that were not.
func omission(omitted string, lost int64) string {
	var parts []string
	if n := strings.Count(omitted, "\n"); n > 0 {
		parts = append(parts, plural(int64(n), "line")+" / "+plural(int64(utf8.RuneCountInString(omitted)), "character"))
	} else if omitted != "" {
		parts = append(parts, plural(int64(utf8.RuneCountInString(omitted)), "character"))
	}
	if lost > 0 {
		parts = append(parts, plural(lost, "byte")+" that were not kept")
	}
	return "[... omitted: " + strings.Join(parts, " and ") + "; print less or filter with grep, head or tail ...]"
}

// join puts the omission on a line of its own.
func join(first, omission, last string) string {
	if first != "" && !strings.HasSuffix(first, "\n") {
		first += "\n"
	}
	return first + omission + "\n" + last
}

// firstPart returns the beginning of s, at most max characters, up to the end
// of a line where that costs no more than a quarter.
func firstPart(s string, max int) string {
	end := 0
	for n := 0; n < max && end < len(s); n++ {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	if end < len(s) {
		if nl := strings.LastIndexByte(s[:end], '\n') + 1; end-nl <= end/4 {
			end = nl
		}
	}
	return s[:end]
}

// lastPart is firstPart for the end of s.
func lastPart(s string, max int) string {
	begin := len(s)
	for n := 0; n < max && begin > 0; n++ {
		_, size := utf8.DecodeLastRuneInString(s[:begin])
		begin -= size
	}
	if begin > 0 && s[begin-1] != '\n' {
		if nl := strings.IndexByte(s[begin:], '\n') + 1; nl > 0 && nl <= (len(s)-begin)/4 {
			begin += nl
		}
	}
	return s[begin:]
}

// cleaner makes text of what a program printed for a terminal, and counts what
// a reader could miss.
type cleaner struct {
	nuls, invalid, overwritten int64
}

func (c *cleaner) notes() []string {
	var notes []string
	if c.overwritten > 0 {
		notes = append(notes, plural(c.overwritten, "line")+` overwritten with \r left out`)
	}
	if c.nuls > 0 {
		notes = append(notes, plural(c.nuls, "NUL byte")+" left out")
	}
	if c.invalid > 0 {
		notes = append(notes, plural(c.invalid, "byte")+" not UTF-8")
	}
	return notes
}

// clean drops escape sequences and control characters except tab and newline,
// puts one U+FFFD for each run of bytes that are not UTF-8, and keeps only the
// last state of a line that was overwritten with carriage returns, as progress
// bars do, or backspaces.
func (c *cleaner) clean(b []byte) string {
	out := make([]byte, 0, len(b))
	line := 0           // where the current line begins in out
	returned := false   // the next character overwrites the line
	wasInvalid := false // the last thing seen was not UTF-8
	add := func(p []byte) {
		if returned {
			if len(out) > line {
				c.overwritten++
			}
			out, returned = out[:line], false
		}
		out = append(out, p...)
	}
	for i := 0; i < len(b); {
		n := 0
		for i+n < len(b) && (b[i+n] >= 0x20 && b[i+n] < 0x7f || b[i+n] == '\t') {
			n++
		}
		if n > 0 {
			add(b[i : i+n])
			i += n
			wasInvalid = false
			continue
		}
		if b[i] >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(b[i:])
			switch {
			case r == utf8.RuneError && n == 1:
				c.invalid++
				if !wasInvalid {
					add([]byte("\uFFFD"))
				}
				wasInvalid = true
			case r < 0xa0: // C1: controls and their sequences in one character
				wasInvalid = false
			default:
				add(b[i : i+n])
				wasInvalid = false
			}
			i += n
			continue
		}
		wasInvalid = false
		switch b[i] {
		case '\n':
			out = append(out, '\n')
			line, returned = len(out), false
		case '\r':
			returned = true
		case '\b':
			if len(out) > line {
				_, size := utf8.DecodeLastRune(out)
				out = out[:len(out)-size]
			}
		case 0:
			c.nuls++
		case 0x1b:
			i += escape(b[i:]) - 1
		}
		i++
	}
	return string(out)
}

// escape returns the length of the escape sequence that b begins with, as of
// ECMA-48 section 5: control sequences (colours, cursor), strings (titles,
// links), and the short ones. A string that does not end is no more than its
// introducer, lest it swallow what follows.
func escape(b []byte) int {
	span := func(i int, from, to byte) int {
		for i < len(b) && from <= b[i] && b[i] <= to {
			i++
		}
		return i
	}
	one := func(i int, from, to byte) int {
		if i < len(b) && from <= b[i] && b[i] <= to {
			return i + 1
		}
		return i
	}
	if len(b) == 1 {
		return 1
	}
	switch b[1] {
	case '[':
		return one(span(2, 0x20, 0x3f), 0x40, 0x7e)
	case ']', 'P', 'X', '^', '_':
		for i := 2; i < len(b) && b[i] != '\n'; i++ {
			switch {
			case b[i] == 0x07:
				return i + 1
			case b[i] != 0x1b:
			case i+1 < len(b) && b[i+1] == '\\':
				return i + 2
			default:
				return 2
			}
		}
		return 2
	}
	return one(span(1, 0x20, 0x2f), 0x30, 0x7e)
}

// plural writes a count of things: 1 line, 1,204 lines.
func plural(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%s %s", count(n), thing)
}
