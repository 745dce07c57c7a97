package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"code-execution-sandbox/internal/runner"
)

func sweepCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Remove what a crashed server left; what a running one has is not touched",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return withHost(cmd.Context(), cfg, func(h *host) error {
				return h.withRunner(cmd.Context(), func(r *runner.Runner) error {
					swept, err := r.Sweep(cmd.Context())
					fmt.Printf("removed %d containers, %d shims, %d cgroups, %d directories, %d snapshots\n",
						swept.Containers, swept.Shims, swept.Cgroups, swept.Directories, swept.Snapshots)
					return err
				})
			})
		},
	}
}
