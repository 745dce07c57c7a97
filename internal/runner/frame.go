package runner

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"syscall"
)

// The wire between us and the launcher; image/launcher/launcher.c has the
// other end and describes it.
const (
	frameMagic = "CES1"
	nonceSize  = 16
	reportSize = nonceSize + 4
	pipesByte  = 'P'
	takenByte  = 'T'
	readyByte  = 'R'
	startByte  = 'S'
)

// nonce marks the report of one run. The program never sees it.
type nonce [nonceSize]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // never fails, see crypto/rand
	return n
}

// frame returns the bytes that deliver code.
func frame(n nonce, code string) []byte {
	b := make([]byte, 0, len(frameMagic)+nonceSize+4+len(code))
	b = append(b, frameMagic...)
	b = append(b, n[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(code))) //nolint:gosec // bounded by Limits.MaxCodeBytes
	return append(b, code...)
}

// parseReport reads the launcher's report of how the program ended.
func parseReport(n nonce, b []byte) (status syscall.WaitStatus, ok bool) {
	if len(b) != reportSize || !bytes.Equal(b[:nonceSize], n[:]) {
		return 0, false
	}
	return syscall.WaitStatus(binary.BigEndian.Uint32(b[nonceSize:])), true
}
