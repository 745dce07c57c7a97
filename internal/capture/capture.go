// Package capture keeps a bounded part of an unbounded stream: its beginning
// and its end, and the count of all that went by. It never blocks the writer
// and never grows past its bound, so a stream can be drained for ever.
package capture

import "sync"

// Buffer takes a stream. It is an io.Writer that never fails. Create it with
// New. It is safe for concurrent use.
type Buffer struct {
	max int // bytes kept, head and tail together

	mu    sync.Mutex
	head  []byte // guarded by mu; grows to max before anything is cut
	tail  []byte // guarded by mu; a ring of max/2 bytes, nil until the head is full
	next  int    // guarded by mu; where the ring is written next
	total int64  // guarded by mu
}

// New returns a Buffer that keeps at most maxBytes bytes.
func New(maxBytes int) *Buffer { return &Buffer{max: maxBytes} }

// Write takes p and returns its length.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(p)
	b.total += int64(n)
	if room := b.max - len(b.head); room > 0 {
		part := p[:min(room, len(p))]
		b.head = append(b.head, part...)
		p = p[len(part):]
	}
	if len(p) == 0 {
		return n, nil
	}
	if b.tail == nil {
		// From here on the second half of the bound holds the end.
		half := b.max / 2
		b.tail = append(make([]byte, 0, half), b.head[b.max-half:]...)
		b.head = b.head[:b.max-half]
		b.max = len(b.head)
	}
	if len(p) > len(b.tail) {
		p = p[len(p)-len(b.tail):]
	}
	for len(p) > 0 {
		c := copy(b.tail[b.next:], p)
		p = p[c:]
		b.next = (b.next + c) % len(b.tail)
	}
	return n, nil
}

// Bytes returns what was kept, the offset in it at which bytes are missing
// (its length where none are), and how many bytes were written in all.
func (b *Buffer) Bytes() (kept []byte, head int, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept = append(kept, b.head...)
	kept = append(kept, b.tail[b.next:]...)
	kept = append(kept, b.tail[:b.next]...)
	head = len(b.head)
	if b.total == int64(len(kept)) {
		head = len(kept)
	}
	return kept, head, b.total
}
