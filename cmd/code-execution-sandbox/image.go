package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"code-execution-sandbox/image"
)

func imageCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "Bring the runtime image in, or tell which is in use",
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(imageImportCommand(a), imageStatusCommand(a))
	return cmd
}

func imageImportCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "import [FILE|-]",
		Short: "Import the runtime image from Docker, or from a tar made by docker save",
		Long: `Imports the image named by sandbox.image into our own containerd namespace,
unpacks it, and checks that it is fit for sandboxes. Without an argument it
comes from Docker through its API. Nothing is done when it is there already.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			source := image.Docker(cfg.Docker.Socket)
			if len(args) == 1 {
				in := os.Stdin
				if args[0] != "-" {
					if in, err = os.Open(args[0]); err != nil {
						return err
					}
					defer func() { _ = in.Close() }()
				}
				source = image.Tar(in)
			}
			return withHost(cmd.Context(), cfg, func(h *host) error {
				show, done := progress()
				img, outcome, err := image.Import(cmd.Context(), h.client, image.Options{
					Name: cfg.Sandbox.Image, Snapshotter: cfg.Containerd.Snapshotter, Progress: show,
				}, source)
				done()
				if err != nil {
					return err
				}
				fmt.Printf("%s: %s, %s, %s\n", outcome, img.Name, img.Digest, megabytes(img.Size))
				return nil
			})
		},
	}
}

func imageStatusCommand(a *app) *cobra.Command {
	var sbom bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell which runtime image is in use, and what is in it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return withHost(cmd.Context(), cfg, func(h *host) error {
				img, err := image.Find(cmd.Context(), h.client, cfg.Sandbox.Image, cfg.Containerd.Snapshotter)
				if err != nil {
					return err
				}
				if sbom {
					text, err := image.SBOM(cmd.Context(), h.client, img)
					if err != nil {
						return err
					}
					_, err = os.Stdout.Write(text)
					return err
				}
				fmt.Printf("name      %s\ndigest    %s\nsource    %s\nlayers    %d, %s\ncreated   %s\ncontains  %s\n",
					img.Name, img.Digest, img.SourceID, img.Layers, megabytes(img.Size), img.Created.UTC().Format(time.RFC3339), img.Environment)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&sbom, "sbom", false, "print its bill of materials (CycloneDX, JSON)")
	return cmd
}

// progress returns a function that draws a bar where a person watches, and one
// that removes it.
func progress() (show func(image.Progress), done func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) { //nolint:gosec // a file descriptor fits
		return nil, func() {}
	}
	var bar *progressbar.ProgressBar
	var step image.Step
	done = func() {
		if bar != nil {
			_ = bar.Clear()
		}
	}
	return func(p image.Progress) {
		if bar == nil || p.Step != step {
			done()
			step = p.Step
			total := p.Total
			if total == 0 {
				total = -1 // a spinner
			}
			bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(os.Stderr),
				progressbar.OptionSetDescription(string(p.Step)), progressbar.OptionShowBytes(p.Step == image.StepRead),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		}
		if p.Total > 0 {
			// An estimate must not end the bar before the import does.
			bar.ChangeMax64(max(p.Total, p.Done+1))
		}
		_ = bar.Set64(p.Done)
	}, done
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
