package capture

// Suffix holds back the last bytes of a stream from the Buffer behind it, for
// a stream that ends in a report that is not the program's.
type Suffix struct {
	out  *Buffer
	held []byte
	size int
}

// NewSuffix returns a Suffix that holds back size bytes of what goes to out.
// It is for one writer at a time.
func NewSuffix(out *Buffer, size int) *Suffix {
	return &Suffix{out: out, size: size, held: make([]byte, 0, 2*size)}
}

// Write takes p and returns its length.
func (s *Suffix) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) >= s.size {
		_, _ = s.out.Write(s.held)
		_, _ = s.out.Write(p[:len(p)-s.size])
		s.held = append(s.held[:0], p[len(p)-s.size:]...)
		return n, nil
	}
	s.held = append(s.held, p...)
	if over := len(s.held) - s.size; over > 0 {
		_, _ = s.out.Write(s.held[:over])
		s.held = append(s.held[:0], s.held[over:]...)
	}
	return n, nil
}

// Held returns the bytes held back, the last ones written. They are valid
// until the next Write.
func (s *Suffix) Held() []byte { return s.held }

// Flush gives the bytes held back to the Buffer: no report came, they are the
// program's own.
func (s *Suffix) Flush() {
	_, _ = s.out.Write(s.held)
	s.held = s.held[:0]
}
