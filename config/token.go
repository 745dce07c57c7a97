package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// MinTokenLength is the least number of characters of a token.
	MinTokenLength = 16
	// maxTokenBytes bounds a token file that is not one, such as a device.
	maxTokenBytes = 64 << 10
)

// Tokens reads the bearer tokens from the first of these that is not empty: the
// environment variable AuthTokenEnv, the file AuthTokenFile, the systemd
// credential "token" ($CREDENTIALS_DIRECTORY/token), and, for the configuration
// at DefaultPath, the file DefaultTokenPath. White space separates
// tokens, so a file has one per line; each of them is accepted, which is how a
// token is replaced without a moment in which a client is locked out.
//
// An error is one line that says what to do, ErrNoToken where there is none. It never holds any part of a
// token.
func (c Config) Tokens() ([]string, error) {
	source, text, err := c.tokenText()
	if err != nil {
		return nil, err
	}
	tokens := strings.Fields(text)
	for i, token := range tokens {
		which := "the token"
		if len(tokens) > 1 {
			which = fmt.Sprintf("token %d of %d, separated by white space,", i+1, len(tokens))
		}
		// RFC 9110, section 11.2: what follows the word Bearer is visible ASCII.
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("%s in %s has characters that no HTTP header carries: use letters, digits and -._~+/=", which, source)
		}
		if len(token) < MinTokenLength {
			return nil, fmt.Errorf("%s in %s is shorter than %d characters: make one with `openssl rand -hex 32`", which, source, MinTokenLength)
		}
	}
	return tokens, nil
}

// tokenText is the first source that holds anything but white space.
func (c Config) tokenText() (source, text string, err error) {
	if c.AuthTokenEnv != "" {
		if text = os.Getenv(c.AuthTokenEnv); strings.TrimSpace(text) != "" {
			return "$" + c.AuthTokenEnv, text, nil
		}
	}
	if c.AuthTokenFile != "" {
		if text, err = readTokenFile(c.AuthTokenFile); err != nil {
			return "", "", fmt.Errorf("auth_token_file: %w", err)
		}
		return c.AuthTokenFile, text, nil
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		path := filepath.Join(dir, "token")
		text, err = readTokenFile(path)
		if err == nil {
			return path, text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("systemd credential: %w", err)
		}
	}
	if c.File == DefaultPath {
		text, err = readTokenFile(DefaultTokenPath)
		if err == nil {
			return DefaultTokenPath, text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("token of the installed service: %w", err)
		}
	}
	where := "set auth_token_env or auth_token_file"
	if c.AuthTokenEnv != "" {
		where = fmt.Sprintf("set %s, here or in ./.env (or auth_token_file, or a systemd credential named token)", c.AuthTokenEnv)
	}
	return "", "", fmt.Errorf("%w: %s to at least %d characters, such as those of `openssl rand -hex 32`", ErrNoToken, where, MinTokenLength)
}

func readTokenFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s is open to every user of this host: chmod 0600 it", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxTokenBytes))
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(string(data)) == "" {
		return "", fmt.Errorf("%s is empty: put a token of at least %d characters into it, such as that of `openssl rand -hex 32`", path, MinTokenLength)
	}
	return string(data), nil
}
