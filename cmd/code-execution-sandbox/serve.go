package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"code-execution-sandbox/config"
	"code-execution-sandbox/image"
	"code-execution-sandbox/internal/httpserver"
	"code-execution-sandbox/internal/mcpserver"
	"code-execution-sandbox/internal/observe"
	"code-execution-sandbox/internal/runner"
	"code-execution-sandbox/internal/sandbox"
)

func serveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Answer MCP clients over HTTP until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.config()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg)
		},
	}
}

// serve runs the server until ctx ends. Everything is taken down in the
// reverse order: first the clients, then the sandboxes, then containerd.
func serve(ctx context.Context, cfg config.Config) (err error) {
	registry := observe.NewRegistry(version)
	// A log that nobody reads must not hold up a call.
	out := observe.NewLog(os.Stderr, registry)
	defer out.Close()
	log := logger(cfg.Logging, out)
	secrets, err := cfg.Tokens()
	if err != nil {
		return err
	}
	ln, err := inherited(cfg.HTTPAddr, log)
	if err == nil && ln == nil {
		ln, err = listen(ctx, cfg.HTTPAddr)
	}
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	h, err := connect(ctx, cfg, log, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := h.protect(); err != nil {
		return err
	}

	hurry, forget := secondSignal()
	defer forget()
	var tool *mcpserver.Server // set before anything can find an image
	opts := h.runnerOptions()
	opts.SelfTest = true
	opts.Pool = map[sandbox.Language]int{sandbox.Python: cfg.Pool.Python, sandbox.Bash: cfg.Pool.Bash}
	opts.Stage = newStages(registry)
	opts.ImageChanged = func(img image.Image) { tool.SetEnvironment(img.Environment) }
	r, err := runner.New(opts)
	if err != nil {
		return err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTimeout, errors.New("sandboxes are left, the next start removes them"))
		defer cancel()
		err = errors.Join(err, r.Close(closeCtx))
	}()
	registry.MustRegister(state{r.Load, r.Stats, cfg})
	h.registerProtections(registry, r)

	audited := observe.New(r, observe.Options{Logger: log, Registerer: registry, Limits: opts.Limits})
	tool = mcpserver.New(mcpserver.Options{
		Executor: audited, Limits: opts.Limits, Version: version, Logger: log,
		MaxStdoutChars: cfg.Result.MaxStdoutChars, MaxStderrChars: cfg.Result.MaxStderrChars,
		Structured: cfg.Result.Structured,
	})
	server, err := httpserver.New(httpserver.Options{
		MCP: tool.Handler(), Health: r, HealthDetail: h.healthDetail(r), Gatherer: registry, Registerer: registry, Tokens: tokens(secrets),
		AllowedOrigins: cfg.AllowedOrigins, AllowedHosts: cfg.AllowedHosts,
		MaxBodyBytes: mcpserver.MaxBodyBytes(opts.Limits), MaxConnections: cfg.MaxConnections,
		ShutdownDelay: cfg.ShutdownDelay.Duration(), ShutdownGrace: cfg.ShutdownGrace.Duration(), Hurry: hurry, Version: version, Logger: log,
	})
	if err != nil {
		return err
	}

	h.logFaults(ctx)
	h.logProtections()

	maintainCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var maintain sync.WaitGroup
	maintain.Go(func() { r.Maintain(maintainCtx) })
	defer func() {
		stop(errors.New("the server ends"))
		maintain.Wait()
	}()
	managed := newManager(server, r.Load, server.EndsWithin()+closeTimeout, log)
	maintain.Go(func() { managed.run(ctx) })
	log.Info("serving", "url", endpoint(ln), "containerd", h.address, "cgroup", int(h.cgroups.Version), "version", version)
	return server.Serve(ctx, ln)
}

// secondSignal returns a channel that is closed by the second signal to end. The
// third then ends the process as if nobody listened.
func secondSignal() (hurry <-chan struct{}, forget func()) {
	signals, second := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer signal.Stop(signals)
		for range 2 {
			select {
			case <-signals:
			case <-done:
				return
			}
		}
		close(second)
	}()
	return second, func() { close(done) }
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is in use by another program: stop that one, or set http_addr", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on http_addr: %w", err)
	}
	return ln, nil
}

// endpoint returns the URL of the MCP endpoint as seen from this host.
func endpoint(ln net.Listener) string { return endpointOf(ln.Addr().String()) }

func endpointOf(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/mcp"
}

// tokens names the tokens for the log by their place in the configuration.
func tokens(secrets []string) []httpserver.Token {
	out := make([]httpserver.Token, 0, len(secrets))
	for i, s := range secrets {
		out = append(out, httpserver.Token{Name: "token-" + strconv.Itoa(i+1), Secret: s})
	}
	return out
}
