package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

// decode reads the arguments of a call and checks them against l. It is
// tolerant where clients are known to differ: unknown keys are ignored (n8n adds
// its own), null and, for what is optional, "" mean absent, a number may be a
// string, the whole may be a string of JSON, and timeout means timeout_seconds.
//
// An error is a *sandbox.InvalidError in one line. It never repeats the code.
// The Request then holds what was understood, for the record.
func decode(raw json.RawMessage, l sandbox.Limits) (sandbox.Request, error) {
	var req sandbox.Request
	args, err := arguments(raw)
	if err != nil {
		return req, err
	}

	code, err := text(args, "code")
	if err != nil {
		return req, err
	}
	req.Code = code

	name, err := text(args, "language")
	if err != nil {
		return req, err
	}
	lang := sandbox.Language(strings.ToLower(strings.TrimSpace(name)))
	switch {
	case absent(args["language"]):
		return req, invalid("language", "is missing; use %s", languages())
	case !lang.Valid() && isWord(name):
		return req, invalid("language", "%q is not supported; use %s", name, languages())
	case !lang.Valid():
		return req, invalid("language", "is not supported; use %s", languages())
	}
	req.Language = lang

	if absent(args["code"]) {
		return req, invalid("code", "is missing; give the source text of a %s program", lang)
	}

	key := "timeout_seconds"
	if absentOrEmpty(args[key]) {
		key = "timeout"
	}
	if value := args[key]; !absentOrEmpty(value) {
		most := int(l.MaxTimeout / time.Second)
		n, ok := wholeNumber(value)
		if !ok || n < 1 || n > float64(most) {
			return req, invalid(key, "must be a whole number from 1 to %d (seconds)", most)
		}
		req.Timeout = time.Duration(n) * time.Second
	}

	stdin, err := text(args, "stdin")
	if err != nil {
		return req, err
	}
	if stdin != "" {
		req.Stdin = []byte(stdin)
	}
	return req, l.Check(&req)
}

// arguments splits the object into its members.
func arguments(raw json.RawMessage) (map[string]json.RawMessage, error) {
	var encoded string
	if json.Unmarshal(raw, &encoded) == nil && encoded != "" {
		raw = json.RawMessage(encoded)
	}
	if absentOrEmpty(raw) {
		return nil, nil
	}
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil {
		return nil, invalid("arguments", "must be an object with language and code")
	}
	return args, nil
}

// text returns a member that is a string, "" when it is absent.
func text(args map[string]json.RawMessage, key string) (string, error) {
	if absent(args[key]) {
		return "", nil
	}
	var s string
	if json.Unmarshal(args[key], &s) != nil {
		return "", invalid(key, "must be a string")
	}
	return s, nil
}

// wholeNumber reads 5, 5.0, 5e0, "5" and " 5.0 ".
func wholeNumber(raw json.RawMessage) (float64, bool) {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		s = string(raw)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return n, err == nil && n == math.Trunc(n)
}

func absent(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

func absentOrEmpty(raw json.RawMessage) bool {
	return absent(raw) || string(bytes.TrimSpace(raw)) == `""`
}

func invalid(argument, format string, args ...any) error {
	return &sandbox.InvalidError{Argument: argument, Reason: fmt.Sprintf(format, args...)}
}

// languages lists the languages for a sentence: "bash" or "python".
func languages() string {
	var quoted []string
	for _, lang := range sandbox.Languages() {
		quoted = append(quoted, strconv.Quote(string(lang)))
	}
	return strings.Join(quoted, " or ")
}

// isWord reports whether s can be repeated to the caller: a name, not a
// program in the wrong place.
func isWord(s string) bool {
	const others = "+#._- "
	return s != "" && len(s) <= 20 && !strings.ContainsFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune(others, r)
	})
}
