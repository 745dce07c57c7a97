// Command code-execution-sandbox lets a language model run short bash and
// python programs in hardened sandboxes without network, one new sandbox for
// each, over the Model Context Protocol.
//
//	code-execution-sandbox serve             answer MCP clients over HTTP
//	code-execution-sandbox run script.py     run one program, as a call would
//	code-execution-sandbox check             is this host fit, and what to do
//	code-execution-sandbox spec              the OCI spec of a call, as JSON
//	code-execution-sandbox image import      bring the image in, from Docker or a tar
//	code-execution-sandbox image status      which image is in use
//	code-execution-sandbox sweep             remove what a crashed server left
//	code-execution-sandbox client-config     entries to paste into MCP clients
//	code-execution-sandbox version
//
// The configuration is a TOML file, see config/config.toml.dist; the bearer
// token comes from the environment or a file. Variables in ./.env are used
// where they are not set already.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/containerd/log"
	"github.com/joho/godotenv"
	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run())
}

// run returns the exit code: 0, that of a program that was run, or 125 for an
// error of ours, which like with docker run is no common code of a program.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // another one ends the process at once, but for serve
	// containerd's client has a logger of its own, which repeats what it
	// returns as errors.
	_ = log.SetLevel("panic")
	err := root().ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "code-execution-sandbox: %s\n", strings.TrimRight(line, "\n"))
	}
	return 125
}

// exitCode is an error that has been told already and only ends the process.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func root() *cobra.Command {
	app := &app{}
	cmd := &cobra.Command{
		Use:           "code-execution-sandbox",
		Short:         "Run bash and python programs for a language model in hardened, single-use sandboxes",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		// A wrong flag deserves one line, not a page.
		PersistentPreRunE: func(*cobra.Command, []string) error { return loadDotEnv() },
	}
	cmd.SetVersionTemplate(versionLine())
	cmd.PersistentFlags().StringVar(&app.configPath, "config", "", "configuration file (default "+defaultConfig()+" if it exists)")
	cmd.AddCommand(serveCommand(app), runCommand(app), checkCommand(app), specCommand(app),
		imageCommand(app), sweepCommand(app), clientConfigCommand(app), versionCommand())
	return cmd
}

// loadDotEnv reads ./.env; a variable that is set already wins.
func loadDotEnv() error {
	if err := godotenv.Load(); err != nil && !errors.Is(err, os.ErrNotExist) {
		// The parser's message repeats the line, which may hold the token.
		return errors.New(".env cannot be read: lines must have the form NAME=value")
	}
	return nil
}
