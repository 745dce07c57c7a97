package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the build.
var version = "devel"

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(*cobra.Command, []string) {
			fmt.Printf("code-execution-sandbox %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
		},
	}
}
