package mcpserver

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"code-execution-sandbox/internal/sandbox"
)

// Rows 19, 20: the definition as clients get it.
func TestTool(t *testing.T) {
	for name, opts := range map[string]Options{
		"tool.json":            testServer(func(o *Options) { o.MaxStdoutChars, o.MaxStderrChars = 16_000, 8_000 }).opts,
		"tool_structured.json": testServer(func(o *Options) { o.Structured = true }).opts,
	} {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetIndent("", "  ")
		if err := enc.Encode(tool(opts, opts.Environment)); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
	golden(t, "instructions.txt", instructions(testServer().opts)+"\n")
}

func TestSchemaIsFlat(t *testing.T) {
	var schema any
	if err := json.Unmarshal(inputSchema(testLimits), &schema); err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{"type": true, "description": true, "enum": true, "properties": true, "required": true}
	var walk func(v any, names bool)
	walk = func(v any, names bool) {
		object, ok := v.(map[string]any)
		if !ok {
			return
		}
		for key, value := range object {
			if !names && !allowed[key] {
				t.Errorf("the schema uses %q", key)
			}
			walk(value, !names && key == "properties")
		}
	}
	walk(schema, false)
	if !regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,47}$`).MatchString(toolName) {
		t.Errorf("clients cannot use the name %q", toolName)
	}
}

// The texts fit, whatever the operator sets and the image says, and every limit
// stands in them.
func TestTextsFit(t *testing.T) {
	huge := sandbox.Limits{
		MaxCodeBytes: math.MaxInt, MaxStdinBytes: math.MaxInt,
		DefaultTimeout: math.MaxInt64, MaxTimeout: math.MaxInt64,
		Memory: math.MaxInt64, CPUs: 1234.56789, PIDs: math.MaxInt64, Tmp: math.MaxInt64,
	}
	for name, environment := range map[string]string{
		"none": "", "short": "Bash 5.2.", "long": strings.Repeat("Žluťoučký kůň, ", 1000), "lines": "a\nb\n\n- c",
	} {
		for _, limits := range []sandbox.Limits{testLimits, huge} {
			opts := testServer(func(o *Options) { o.Limits = limits }).opts
			d, i := description(opts, environment), instructions(opts)
			if len(d) > maxTextBytes || len(i) > maxTextBytes {
				t.Errorf("%s: description has %d bytes and instructions %d, the most is %d", name, len(d), len(i), maxTextBytes)
			}
			if !utf8.ValidString(d) {
				t.Errorf("%s: the description is not valid UTF-8", name)
			}
			if name == "lines" && !strings.Contains(d, "installed. a b - c\n") {
				t.Errorf("the environment is not one line of %q", d)
			}
		}
	}
	opts := testServer(func(o *Options) {
		o.MaxStdoutChars, o.MaxStderrChars = 12_345, 6_789
		o.Limits.DefaultTimeout, o.Limits.MaxTimeout = 7*time.Second, 77*time.Second
		o.Limits.Memory, o.Limits.Tmp, o.Limits.CPUs, o.Limits.PIDs = 768<<20, 33<<20, 1.5, 99
	}).opts
	d := description(opts, "")
	for _, want := range []string{"12,345", "6,789", "7 s", "77 s", "768 MiB", "33 MiB", "1.5 CPUs", "99 processes"} {
		if !strings.Contains(d, want) {
			t.Errorf("the description does not say %q", want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(1234567), "1,234,567"}, {count(65536), "65,536"},
		{size(1 << 30), "1 GiB"}, {size(3 << 29), "1,536 MiB"}, {size(64 << 20), "64 MiB"}, {size(1000), "1,000 bytes"}, {size(0), "0 bytes"},
		{processors(1), "1 CPU"}, {processors(0.5), "0.5 CPUs"}, {processors(4), "4 CPUs"},
		{plural(1, "line"), "1 line"}, {plural(0, "line"), "0 lines"}, {plural(1204, "line"), "1,204 lines"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
