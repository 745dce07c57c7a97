package escape

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envInterrupt makes this test binary call the kernel the 32-bit way, and end.
const envInterrupt = "ESCAPE_INTERRUPT"

func init() {
	if os.Getenv(envInterrupt) != "" {
		interrupt()
		os.Exit(0)
	}
}

// hasInterrupt reports whether a process of this host survives that.
var hasInterrupt = sync.OnceValue(func() bool {
	if runtime.GOARCH != "amd64" {
		return false
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envInterrupt+"=1")
	return cmd.Run() == nil
})

// interrupt asks for the process id: mov eax, 20; int 0x80; ret.
func interrupt() {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		os.Exit(1)
	}
	copy(page, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3})
	code := unsafe.Pointer(&page[0])
	entry := unsafe.Pointer(&code)
	(*(*func())(unsafe.Pointer(&entry)))()
}
