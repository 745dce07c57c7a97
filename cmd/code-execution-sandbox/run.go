package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

func runCommand(a *app) *cobra.Command {
	var language, stdin string
	var timeout int
	cmd := &cobra.Command{
		Use:   "run [FILE|-]",
		Short: "Run one program in a sandbox, as a call would, and pass its exit code on",
		Long: `Runs the program in FILE, or on standard input, in a sandbox exactly like that
of a call: same limits, same image, no network, nothing kept.

Exit codes: the program's own; 124 at the time limit, 137 at the memory limit,
125 when no program could be run.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "-"
			if len(args) == 1 {
				file = args[0]
			}
			if cmd.Flags().Changed("timeout") && timeout < 1 {
				return fmt.Errorf("--timeout %d: a program runs for at least 1 second", timeout)
			}
			return runOnce(cmd.Context(), a, file, stdin, sandbox.Request{
				ID: "run", Language: languageOf(language, file), Timeout: time.Duration(timeout) * time.Second,
			})
		},
	}
	cmd.Flags().StringVarP(&language, "language", "l", "", "bash or python (default: by the ending .sh or .py)")
	cmd.Flags().StringVar(&stdin, "stdin", "", "file with the program's standard input, - for ours (default: none)")
	cmd.Flags().IntVar(&timeout, "timeout", 0, "time limit in seconds (default: as configured)")
	return cmd
}

// languageOf returns the language of a file that is not told.
func languageOf(flag, file string) sandbox.Language {
	if flag != "" {
		return sandbox.Language(flag)
	}
	return map[string]sandbox.Language{".py": sandbox.Python, ".sh": sandbox.Bash, ".bash": sandbox.Bash}[filepath.Ext(file)]
}

func runOnce(ctx context.Context, a *app, file, stdin string, req sandbox.Request) (err error) {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if req.Language == "" {
		return errors.New("which language? add --language bash or --language python")
	}
	if file == "-" && stdin == "-" {
		return errors.New("standard input cannot be both the program and its input")
	}
	if req.Code, err = readInput(file); err != nil {
		return err
	}
	if stdin != "" {
		in, err := readInput(stdin)
		if err != nil {
			return err
		}
		req.Stdin = []byte(in)
	}
	bounds := limits(cfg)
	if err := bounds.Check(&req); err != nil {
		return err
	}
	var res *sandbox.Result
	err = withRunner(ctx, cfg, func(r *runner.Runner) error {
		if err := r.Refresh(ctx); err != nil {
			return err
		}
		res, err = r.Execute(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	_, _ = os.Stdout.Write(res.Stdout)
	_, _ = os.Stderr.Write(res.Stderr)
	if res.Truncated() {
		fmt.Fprintf(os.Stderr, "code-execution-sandbox: output cut: %d of %d bytes of stdout and %d of %d of stderr are shown\n",
			len(res.Stdout), res.StdoutBytes, len(res.Stderr), res.StderrBytes)
	}
	switch res.Status {
	case sandbox.StatusTimedOut:
		fmt.Fprintf(os.Stderr, "code-execution-sandbox: killed at the time limit of %d s\n", int(res.Timeout.Seconds()))
		return exitCode(124)
	case sandbox.StatusOutOfMemory:
		fmt.Fprintf(os.Stderr, "code-execution-sandbox: the memory limit of %s was reached\n", cfg.Sandbox.MemoryLimit)
		return exitCode(137)
	}
	if res.ExitCode != 0 {
		return exitCode(res.ExitCode)
	}
	return nil
}
