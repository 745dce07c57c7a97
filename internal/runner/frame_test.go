package runner

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"
)

func TestFrame(t *testing.T) {
	n := nonce{1, 2, 3}
	got := frame(n, "print(1)\x00é")
	want := append([]byte("CES1"), n[:]...)
	want = append(want, 0, 0, 0, 11)
	want = append(want, "print(1)\x00é"...)
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if a, b := newNonce(), newNonce(); a == b || a == (nonce{}) {
		t.Error("a nonce can be guessed")
	}
}

func FuzzParseReport(f *testing.F) {
	n := nonce{'a', 'b'}
	f.Add(append(n[:], 0, 0, 1, 0))
	f.Add(append(n[:], 0, 0, 0, 9))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		status, ok := parseReport(n, b)
		if want := len(b) == reportSize && bytes.HasPrefix(b, n[:]); ok != want {
			t.Fatalf("%x is a report: %v", b, ok)
		}
		if ok && status != syscall.WaitStatus(binary.BigEndian.Uint32(b[nonceSize:])) || !ok && status != 0 {
			t.Fatalf("%x says %d", b, status)
		}
	})
}
