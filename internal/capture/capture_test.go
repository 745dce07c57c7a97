package capture

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// stream is n bytes of which no two places look alike.
func stream(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%07d ", i)
	}
	return b.Bytes()[:n]
}

// verify holds what a Buffer kept of in against its contract.
func verify(t *testing.T, b *Buffer, limit int, in []byte) {
	t.Helper()
	kept, head, total := b.Bytes()
	if total != int64(len(in)) || len(kept) != min(limit, len(in)) {
		t.Fatalf("of %d bytes at a bound of %d: %d counted, %d kept", len(in), limit, total, len(kept))
	}
	if len(in) <= limit {
		if head != len(kept) || !bytes.Equal(kept, in) {
			t.Fatalf("%d bytes within the bound of %d are changed, or said to be cut at %d", len(in), limit, head)
		}
		return
	}
	tail := len(kept) - head
	if tail != limit/2 {
		t.Fatalf("the end has %d of %d bytes", tail, limit)
	}
	if !bytes.Equal(kept[:head], in[:head]) || !bytes.Equal(kept[head:], in[len(in)-tail:]) {
		t.Fatalf("of %d bytes at a bound of %d: not the beginning and the end", len(in), limit)
	}
}

func TestBuffer(t *testing.T) {
	for _, limit := range []int{0, 1, 2, 3, 7, 64, 1000} {
		for _, n := range []int{0, 1, limit - 1, limit, limit + 1, limit + limit/2, 2 * limit, 2*limit + 1, 10*limit + 3} {
			for _, chunk := range []int{1, 3, limit/2 + 1, limit, 3*limit + 1} {
				if n < 0 || chunk == 0 {
					continue
				}
				in := stream(n)
				b := New(limit)
				for rest := in; len(rest) > 0; {
					c := min(chunk, len(rest))
					if got, err := b.Write(rest[:c]); got != c || err != nil {
						t.Fatalf("Write(%d bytes) = %d, %v", c, got, err)
					}
					rest = rest[c:]
				}
				verify(t, b, limit, in)
				verify(t, b, limit, in) // reading changes nothing
			}
		}
	}
}

func TestBufferDoesNotGrow(t *testing.T) {
	b := New(1 << 10)
	chunk := make([]byte, 1<<20)
	_, _ = b.Write(chunk)
	if n := testing.AllocsPerRun(100, func() { _, _ = b.Write(chunk) }); n > 0 {
		t.Errorf("%v allocations for each write beyond the bound", n)
	}
}

func TestBufferOwnsItsBytes(t *testing.T) {
	b := New(10)
	in := []byte("abc")
	_, _ = b.Write(in)
	in[0] = 'x'
	kept, _, _ := b.Bytes()
	kept[1] = 'x'
	if again, _, _ := b.Bytes(); string(again) != "abc" {
		t.Errorf("changed from outside: %q", again)
	}
}

func TestBufferFromSeveralWriters(t *testing.T) {
	b := New(100)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				_, _ = b.Write([]byte("0123456789"))
				_, _, _ = b.Bytes()
			}
		})
	}
	wg.Wait()
	if kept, _, total := b.Bytes(); total != 40000 || string(kept) != strings.Repeat("0123456789", 10) {
		t.Errorf("%d bytes counted, kept %q", total, kept)
	}
}

func TestSuffix(t *testing.T) {
	const size = 20
	for n := range 100 {
		for chunk := 1; chunk < 50; chunk++ {
			in := stream(n)
			out := New(1000)
			s := NewSuffix(out, size)
			for rest := in; len(rest) > 0; {
				c := min(chunk, len(rest))
				if got, err := s.Write(rest[:c]); got != c || err != nil {
					t.Fatalf("Write(%d bytes) = %d, %v", c, got, err)
				}
				rest = rest[c:]
			}
			border := max(0, n-size)
			if kept, _, _ := out.Bytes(); !bytes.Equal(kept, in[:border]) || !bytes.Equal(s.Held(), in[border:]) {
				t.Fatalf("%d bytes by %d: %q passed, %q held", n, chunk, kept, s.Held())
			}
			s.Flush()
			verify(t, out, 1000, in)
			if len(s.Held()) > 0 {
				t.Fatalf("held after Flush: %q", s.Held())
			}
		}
	}
}

func FuzzBuffer(f *testing.F) {
	f.Add(uint16(10), []byte("abcdefghijklmnopq"), byte(3))
	f.Add(uint16(0), []byte("a"), byte(1))
	f.Fuzz(func(t *testing.T, limit uint16, in []byte, chunk byte) {
		direct, behind := New(int(limit)), New(int(limit))
		suffix := NewSuffix(behind, 20)
		for rest := in; len(rest) > 0; {
			c := min(int(chunk)+1, len(rest))
			_, _ = direct.Write(rest[:c])
			_, _ = suffix.Write(rest[:c])
			rest = rest[c:]
		}
		suffix.Flush()
		verify(t, direct, int(limit), in)
		verify(t, behind, int(limit), in)
	})
}
