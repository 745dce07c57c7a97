package mcpserver

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"code-execution-sandbox/internal/sandbox"
)

var testLimits = sandbox.Limits{
	MaxCodeBytes:   64 << 10,
	MaxStdinBytes:  1 << 20,
	DefaultTimeout: 10 * time.Second,
	MaxTimeout:     60 * time.Second,
	MaxOutputBytes: 1 << 20,
	Memory:         1 << 30,
	CPUs:           1,
	PIDs:           128,
	Tmp:            64 << 20,
	Shm:            16 << 20,
}

func TestDecode(t *testing.T) {
	python := sandbox.Request{Language: sandbox.Python, Code: "print(1)", Timeout: 10 * time.Second}
	with := func(change func(*sandbox.Request)) sandbox.Request {
		r := python
		change(&r)
		return r
	}
	five := with(func(r *sandbox.Request) { r.Timeout = 5 * time.Second })
	for _, test := range []struct {
		name, args string
		want       sandbox.Request
	}{
		{"plain", `{"language":"python","code":"print(1)"}`, python},
		{"bash", `{"language":"bash","code":"true"}`, sandbox.Request{Language: sandbox.Bash, Code: "true", Timeout: 10 * time.Second}},
		{"another case", `{"language":" Python ","code":"print(1)"}`, python},
		{"unknown keys", `{"language":"python","code":"print(1)","toolCallId":"x","extra":{"a":[1]}}`, python},
		{"nulls", `{"language":"python","code":"print(1)","timeout_seconds":null,"timeout":null,"stdin":null}`, python},
		{"empty strings", `{"language":"python","code":"print(1)","timeout_seconds":"","stdin":""}`, python},
		{"integer", `{"language":"python","code":"print(1)","timeout_seconds":5}`, five},
		{"float", `{"language":"python","code":"print(1)","timeout_seconds":5.0}`, five},
		{"exponent", `{"language":"python","code":"print(1)","timeout_seconds":5e0}`, five},
		{"string", `{"language":"python","code":"print(1)","timeout_seconds":"5"}`, five},
		{"string of a float", `{"language":"python","code":"print(1)","timeout_seconds":" 5.0 "}`, five},
		{"alias", `{"language":"python","code":"print(1)","timeout":5}`, five},
		{"alias behind null", `{"language":"python","code":"print(1)","timeout_seconds":null,"timeout":"5"}`, five},
		{"both", `{"language":"python","code":"print(1)","timeout_seconds":5,"timeout":50}`, five},
		{"the most", `{"language":"python","code":"print(1)","timeout_seconds":60}`, with(func(r *sandbox.Request) { r.Timeout = time.Minute })},
		{"stdin", `{"language":"python","code":"print(1)","stdin":"a\nb"}`, with(func(r *sandbox.Request) { r.Stdin = []byte("a\nb") })},
		{"a string of JSON", `"{\"language\":\"python\",\"code\":\"print(1)\"}"`, python},
		{"code as it is", `{"language":"python","code":"  \r\n\u0000é\u2028 "}`, with(func(r *sandbox.Request) { r.Code = "  \r\n\x00é\u2028 " })},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := decode(json.RawMessage(test.args), testLimits)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	const secret = "SECRET_CODE"
	code := func(rest string) string { return `{"language":"python","code":"` + secret + `"` + rest + `}` }
	const lang, sec = `use "bash" or "python"`, "must be a whole number from 1 to 60 (seconds)"
	for _, test := range []struct {
		name, args, argument, reason string
	}{
		{"nothing", ``, "language", "is missing; " + lang},
		{"null", `null`, "language", "is missing; " + lang},
		{"empty string", `""`, "language", "is missing; " + lang},
		{"array", `["` + secret + `"]`, "arguments", "must be an object with language and code"},
		{"string", `"` + secret + `"`, "arguments", "must be an object with language and code"},
		{"number", `7`, "arguments", "must be an object with language and code"},
		{"no code", `{"language":"bash"}`, "code", "is missing; give the source text of a bash program"},
		{"null code", `{"language":"bash","code":null}`, "code", "is missing; give the source text of a bash program"},
		{"empty code", `{"language":"bash","code":""}`, "code", "must not be empty"},
		{"code is a list", `{"language":"bash","code":["` + secret + `"]}`, "code", "must be a string"},
		{"long code", `{"language":"bash","code":"` + strings.Repeat(secret, 10_000) + `"}`, "code", "is 110000 bytes long, the limit is 65536 bytes"},
		{"long stdin", code(`,"stdin":"` + strings.Repeat(secret, 100_000) + `"`), "stdin", "is 1100000 bytes long, the limit is 1048576 bytes"},
		{"stdin is a number", code(`,"stdin":1`), "stdin", "must be a string"},
		{"no language", `{"code":"` + secret + `"}`, "language", "is missing; " + lang},
		{"ruby", `{"language":"ruby","code":"` + secret + `"}`, "language", `"ruby" is not supported; ` + lang},
		{"a program as language", `{"language":"print('` + secret + `')","code":"x"}`, "language", "is not supported; " + lang},
		{"language is a number", `{"language":3,"code":"x"}`, "language", "must be a string"},
		{"empty language", `{"language":"","code":"x"}`, "language", "is not supported; " + lang},
		{"zero", code(`,"timeout_seconds":0`), "timeout_seconds", sec},
		{"negative", code(`,"timeout_seconds":-1`), "timeout_seconds", sec},
		{"half", code(`,"timeout_seconds":0.5`), "timeout_seconds", sec},
		{"too long", code(`,"timeout_seconds":61`), "timeout_seconds", sec},
		{"far too long", code(`,"timeout_seconds":1e9`), "timeout_seconds", sec},
		{"out of this world", code(`,"timeout_seconds":1e999`), "timeout_seconds", sec},
		{"alias", code(`,"timeout":1e9`), "timeout", sec},
		{"word", code(`,"timeout_seconds":"abc"`), "timeout_seconds", sec},
		{"not a number", code(`,"timeout_seconds":"NaN"`), "timeout_seconds", sec},
		{"infinity", code(`,"timeout_seconds":"Inf"`), "timeout_seconds", sec},
		{"bool", code(`,"timeout_seconds":true`), "timeout_seconds", sec},
		{"object", code(`,"timeout_seconds":{"s":5}`), "timeout_seconds", sec},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := decode(json.RawMessage(test.args), testLimits)
			var invalid *sandbox.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
			if invalid.Argument != test.argument || invalid.Reason != test.reason {
				t.Errorf("got %q: %q, want %q: %q", invalid.Argument, invalid.Reason, test.argument, test.reason)
			}
			if text := err.Error(); strings.Contains(text, secret) || strings.Contains(text, "\n") || len(text) > 200 {
				t.Errorf("%q is not a short line without the code", text)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"language":"python","code":"print(1)","timeout":"5","stdin":"x"}`))
	f.Add([]byte(`"{\"language\":\"bash\"}"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := decode(raw, testLimits)
		if err != nil {
			if !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("%v is not an ErrInvalid", err)
			}
			return
		}
		if err := testLimits.Check(&req); err != nil {
			t.Errorf("accepted what breaks the limits: %v", err)
		}
	})
}
