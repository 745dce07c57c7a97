package faults

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// rows says which tests show what must happen at each of the numbered faults.
// What a fault needs a whole host for is in test/host, on a virtual machine.
var rows = []struct {
	number       int
	fault, tests string
}{
	// F-0, after every fault nothing is left: harness.Leftovers, base and TestMain.
	{1, "containerd restarts in a call", "faults.TestF1ContainerdRestartsDuringACall faults.TestF1ContainerdIsAwayDuringACall"},
	{2, "containerd is killed while it creates", "faults.TestF2ContainerdDiesWhileItCreates"},
	{3, "containerd is away when a program ends", "faults.TestF3ContainerdIsAwayAtTheEnd"},
	{4, "containerd is down at the start", "faults.TestF4ContainerdIsDownAtTheStart"},
	{5, "a shim or launcher is killed", "faults.TestF5ShimDies faults.TestF5LauncherDiesOrStops faults.TestF5LauncherDiesAtDelivery faults.TestF5InterpreterDies"},
	{6, "a shim or containerd is stopped", "faults.TestF6ShimIsStopped faults.TestF6ContainerdIsStopped"},
	{7, "the runtime is slow or hangs", "faults.TestF7RuntimeIsSlowOrHangs"},
	{8, "the runtime is missing or broken", "faults.TestF8RuntimeIsMissingOrBroken faults.TestF8HealthTells"},
	{9, "a removal takes too long, or fails", "faults.TestF9SandboxesCannotBeRemoved faults.TestF7RuntimeIsSlowOrHangs"},
	{10, "the image goes away", "faults.TestF10ImageGoesAway integration.TestImageComesLater"},
	{11, "a layer is damaged", "faults.TestF11DamagedLayer"},
	{12, "a disk is full", "faults.TestF12DiskFull"},
	{13, "no descriptors are left", "faults.TestF13NoDescriptors faults.TestF30FiveThousandClients"},
	{14, "the client goes away", "faults.TestF14ClientGoesAway conformance.TestRow39Cancelled conformance.TestRow40ConnectionDrop"},
	{15, "the client stops reading", "faults.TestF15ClientStopsReading httpserver.TestStalledClient"},
	{16, "SIGTERM with calls running", "faults.TestF16Termination faults.TestF16TerminationAtTheStart faults.TestF16CloseIsBounded"},
	{17, "SIGKILL at any moment, and a restart", "faults.TestF17KilledServer faults.TestF17ProgramsEndWithTheirServer faults.TestF17LaunchersEndWithTheirServer integration.TestKilledServer"},
	{18, "two servers on one host", "faults.TestF18TwoServers faults.TestF18TwoRunners runner.TestClaimIDs"},
	{19, "an id is there already", ""}, // ids have 128 random bits, and none is used again
	{20, "leftovers of a crash", "faults.TestF20StaleFiles faults.TestF9SandboxesCannotBeRemoved"},
	{21, "the wall clock jumps", "host.TestHost"},
	{22, "a stream is held open after the end", "faults.TestF22StreamHeldFromOutside"},
	{23, "the server pauses", "faults.TestF23ServerPauses"},
	{24, "tokens are guessed", "httpserver.TestFailedTokensAreLimited httpserver.TestRow3Tokens"},
	{25, "no token, or a short one", "config.TestTokensErrors integration.TestOneLineErrors"},
	{26, "slow and idle connections", "faults.TestF26Slowloris faults.TestF26IdleConnections httpserver.TestSlowBody httpserver.TestMaxConnections"},
	{27, "huge, deep and malformed bodies", "faults.TestF27Bodies httpserver.TestRow7TooLarge httpserver.TestRow9Malformed mcpserver.TestDecodeRefuses"},
	{28, "a browser attacks", "httpserver.TestRow4Origin httpserver.TestHosts httpserver.TestOriginsFromOutside httpserver.TestRow8ContentType"},
	{29, "sessions are flooded or stolen", "httpserver.TestRow14Sessions httpserver.TestCancelledByAnotherToken httpserver.TestRow44NothingStays"},
	{30, "5000 calls at once", "faults.TestF30FiveThousandClients integration.TestQueue"},
	{31, "everybody comes back at once", "faults.TestF31NoThunderingHerd"},
	{32, "the host is out of memory", "host.TestHost"},
	{33, "a protection is gone after an update", "faults.TestF33ProofAfterARestart integration.TestSelfTest"},
	{34, "a new configuration is bad", "integration.TestOneLineErrors"}, // it is read once, at the start
	{35, "nobody takes the log", "faults.TestF35LogIsStuck observe.TestLogOfAStalledReader"},
	{36, "a kernel and runtime with a known fault", "advisory.TestLook advisory.TestFound"},
	{37, "the host restarts with leftovers", "host.TestHost"},
	{38, "debug pages are exposed", "httpserver.TestRow11NotFound"},
}

// The table is whole, and each test in it exists.
func TestRowsHaveTests(t *testing.T) {
	exist := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, pattern := range []string{"../*/*_test.go", "../../internal/*/*_test.go", "../../config/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := filepath.Abs(filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range declared.FindAllSubmatch(source, -1) {
				exist[filepath.Base(dir)+"."+string(found[1])] = true
			}
		}
	}
	for i, row := range rows {
		if row.number != i+1 {
			t.Errorf("row %d stands where %d should", row.number, i+1)
		}
		for test := range strings.FieldsSeq(row.tests) {
			if !exist[test] {
				t.Errorf("row %d, %s: there is no %s", row.number, row.fault, test)
			}
		}
	}
	if len(rows) != 38 {
		t.Errorf("%d rows, want 38", len(rows))
	}
}
