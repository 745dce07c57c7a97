// Package escape runs programs that try to get out of their sandbox, to learn
// of the host, to reach a neighbour, to leave something behind, or to exhaust
// what is shared; and holds what they see, and what the caller is told,
// against a numbered table. The numbers are those of the security bar, so that
// a row can be named in a discussion and in the mutation runs, which take one
// protection away and want the rows that it serves to fail.
package escape

import (
	"flag"
	"os"
	"testing"

	"code-execution-sandbox/test/harness"
)

var (
	update = flag.Bool("update", false, "write the snapshot of the answers to system calls anew")
	sweep  = flag.Bool("sweep", false, "let every probe judge each mutation, not only the rows that it must fail")
	only   = flag.String("rows", "", "run only the rows with these numbers: 17 or 1-101, separated by commas")
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envMutation); name != "" {
		os.Exit(mutate(name, os.Args[1:]))
	}
	// What is served is what must hold.
	os.Exit(harness.Main(m, harness.Image(harness.Full)))
}
