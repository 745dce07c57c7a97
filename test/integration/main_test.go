// Package integration runs programs on a real containerd and holds the result
// against the contract.
package integration

import (
	"os"
	"testing"

	"code-execution-sandbox/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
