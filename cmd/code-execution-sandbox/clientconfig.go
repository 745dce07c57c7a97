package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"code-execution-sandbox/config"
	"code-execution-sandbox/internal/clientconfig"
)

func clientConfigCommand(a *app) *cobra.Command {
	var url string
	var withToken bool
	names := make([]string, 0, len(clientconfig.Clients()))
	for _, c := range clientconfig.Clients() {
		names = append(names, c.Name)
	}
	cmd := &cobra.Command{
		Use:       "client-config [CLIENT...]",
		Short:     "Print the entry to paste into an MCP client",
		Long:      "Prints ready-to-paste entries for these clients, all of them without an argument:\n  " + strings.Join(names, " ") + "\nThe entry goes to standard output, where it belongs to standard error.",
		ValidArgs: names,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			opts := clientconfig.Options{
				URL:        url, // The client's variable: the server may have none.
				TokenEnv:   cmp.Or(cfg.AuthTokenEnv, config.Default().AuthTokenEnv),
				MaxTimeout: cfg.Sandbox.MaxTimeout.Duration(), MaxWait: cfg.Queue.MaxWait.Duration(),
			}
			if opts.URL == "" {
				opts.URL = endpointOf(cfg.HTTPAddr)
			}
			opts.URL = clientconfig.Endpoint(opts.URL)
			if withToken {
				secrets, err := cfg.Tokens()
				if err != nil {
					return err
				}
				opts.Token = secrets[0]
			}
			if len(args) == 0 {
				args = names
			}
			for _, name := range args {
				entry, err := clientconfig.Entry(name, opts)
				if err != nil {
					return err
				}
				notes, err := clientconfig.Notes(name, opts)
				if err != nil {
					return err
				}
				for _, note := range notes {
					fmt.Fprintln(os.Stderr, "# "+note)
				}
				fmt.Println(entry)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "address of the server as the client sees it; /mcp is added where there is no path (default: this host)")
	cmd.Flags().BoolVar(&withToken, "with-token", false, "write the token itself into the entry")
	return cmd
}
