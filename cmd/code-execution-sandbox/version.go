package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "devel"

// versionLine is what version and --version print.
func versionLine() string {
	return fmt.Sprintf("code-execution-sandbox %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			fmt.Print(versionLine())
		},
	}
}
