package main

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"code-execution-sandbox/internal/cgroup"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

func specCommand(a *app) *cobra.Command {
	var language string
	cmd := &cobra.Command{
		Use:   "spec",
		Short: "Print the OCI spec of a call on this host, as JSON",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			h := host{cfg: cfg}
			if h.cgroups, err = cgroup.Detect(); err != nil {
				return err
			}
			spec, err := runner.Spec(h.runnerOptions(), sandbox.Language(language))
			if err != nil {
				return err
			}
			out := json.NewEncoder(os.Stdout)
			out.SetIndent("", "  ")
			return out.Encode(spec)
		},
	}
	cmd.Flags().StringVarP(&language, "language", "l", string(sandbox.Python), "bash or python")
	return cmd
}
