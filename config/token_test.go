package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	tokenA = "aaaaaaaa-0123456789"
	tokenB = "bbbbbbbb-0123456789"
)

// tokenFile writes a file with exactly this mode, whatever the umask is.
func tokenFile(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	file := tokenFile(t, dir, "one", tokenB+"\n", 0o640)
	credentials := tokenFile(t, t.TempDir(), "token", tokenB+"\r\n\n"+tokenA, 0o400)

	for _, tt := range []struct {
		name, env, file, credentials string
		want                         []string
	}{
		{"variable", tokenA, "", "", []string{tokenA}},
		{"variable with a newline", tokenA + "\n", "", "", []string{tokenA}},
		{"two in a variable", tokenA + " " + tokenB, "", "", []string{tokenA, tokenB}},
		{"variable before file", tokenA, file, credentials, []string{tokenA}},
		{"file for an empty variable", " ", file, credentials, []string{tokenB}},
		{"credential", "", "", credentials, []string{tokenB, tokenA}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Default()
			cfg.AuthTokenFile = tt.file
			t.Setenv(cfg.AuthTokenEnv, tt.env)
			t.Setenv("CREDENTIALS_DIRECTORY", filepath.Dir(tt.credentials))
			got, err := cfg.Tokens()
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("Tokens() = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestTokensErrors(t *testing.T) {
	dir := t.TempDir()
	open := tokenFile(t, dir, "open", tokenA, 0o644)
	empty := tokenFile(t, dir, "empty", "\n", 0o600)
	missing := filepath.Join(dir, "missing")

	for _, tt := range []struct{ name, env, file, want string }{
		{"none", "", "", "no bearer token: set SANDBOX_MCP_TOKEN, here or in ./.env (or auth_token_file, or a systemd credential named token) to at least 16 characters, such as those of `openssl rand -hex 32`"},
		{"blank", " \n", "", "no bearer token: set SANDBOX_MCP_TOKEN, here or in ./.env (or auth_token_file, or a systemd credential named token) to at least 16 characters, such as those of `openssl rand -hex 32`"},
		{"short", "secret-of-15-ch", "", "the token in $SANDBOX_MCP_TOKEN is shorter than 16 characters: make one with `openssl rand -hex 32`"},
		{"second short", tokenA + " secret", "", "token 2 of 2, separated by white space, in $SANDBOX_MCP_TOKEN is shorter than 16 characters: make one with `openssl rand -hex 32`"},
		{"not for a header", "secret-sécret-secret", "", "the token in $SANDBOX_MCP_TOKEN has characters that no HTTP header carries: use letters, digits and -._~+/="},
		{"open file", "", open, "auth_token_file: " + open + " is open to every user of this host: chmod 0600 it"},
		{"empty file", "", empty, "auth_token_file: " + empty + " is empty: put a token of at least 16 characters into it, such as that of `openssl rand -hex 32`"},
		{"missing file", "", missing, "auth_token_file: open " + missing + ": no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Default()
			cfg.AuthTokenFile = tt.file
			t.Setenv(cfg.AuthTokenEnv, tt.env)
			t.Setenv("CREDENTIALS_DIRECTORY", dir)
			_, err := cfg.Tokens()
			if err == nil {
				t.Fatal("no error")
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), tokenA) {
				t.Errorf("the error shows the token: %s", err)
			}
		})
	}
}
