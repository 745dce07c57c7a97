package main

import "github.com/spf13/cobra"

func serveCommand(a *app) *cobra.Command        { return &cobra.Command{Use: "serve"} }
func checkCommand(a *app) *cobra.Command        { return &cobra.Command{Use: "check"} }
func clientConfigCommand(a *app) *cobra.Command { return &cobra.Command{Use: "client-config"} }
