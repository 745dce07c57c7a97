package mcpserver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/sandbox"
)

const (
	toolName  = "execute_code"
	toolTitle = "Run code in a sandbox"

	// maxTextBytes bounds the description and the instructions: clients cut
	// both at 2 KB (anthropics/claude-code#41141).
	maxTextBytes = 2047
)

// tool returns the definition of the tool. It is a pure function of what it is
// given, so that the list of tools is the same, byte for byte, at every call.
func tool(opts Options, environment string) *mcp.Tool {
	no := false
	t := &mcp.Tool{
		Name:        toolName,
		Title:       toolTitle,
		Description: description(opts, environment),
		InputSchema: inputSchema(opts.Limits),
		// All four hints, since an absent one means the worst. Nothing outside
		// the throw-away sandbox can change (not destructive) or be reached
		// (closed world), and a shell is not read-only.
		Annotations: &mcp.ToolAnnotations{
			Title:           toolTitle,
			DestructiveHint: &no,
			OpenWorldHint:   &no,
		},
		// Claude Code shows a model only the names of tools until it asks,
		// unless told otherwise.
		Meta: mcp.Meta{
			"anthropic/alwaysLoad": true,
			"anthropic/searchHint": "run python or bash code, calculate, process data",
		},
	}
	if opts.Structured {
		t.OutputSchema = outputSchema
	}
	return t
}

// description tells the model everything it needs, the limits included: some
// clients strip all but types and descriptions from a schema. The environment
// is cut before anything else is.
func description(opts Options, environment string) string {
	l := opts.Limits
	before := "Run a Bash script or Python program in a fresh, isolated sandbox and get its exit code, stdout and stderr. " +
		"Use it to compute, to parse or transform data, to test a snippet, or to run shell commands.\n\n" +
		"- Every call starts clean: no files, variables, packages or processes survive. Put all steps of a task into one call.\n" +
		"- Only what is printed is returned; in Python use print(), the last expression is not echoed.\n"
	network := "- No network, not even to localhost; nothing can be downloaded or installed."
	cut := fmt.Sprintf("%s characters of stdout, %s of stderr", count(opts.MaxStdoutChars), count(opts.MaxStderrChars))
	if opts.Structured { // which some clients show in place of the text
		cut += fmt.Sprintf("; %s of each as structured content", size(int64(l.MaxOutputBytes)))
	}
	after := fmt.Sprintf("\n- The program is the file /tmp/main.py or /tmp/main.sh, in the working directory /tmp: the place to write (%s), "+
		"where no file can be executed directly (use bash FILE or python3 FILE).\n"+
		"- Time limit %d s unless timeout_seconds is given, at most %d s; then the program is killed and what it printed so far is returned. "+
		"Memory %s, %s, %s processes and threads.\n"+
		"- Standard input is empty unless stdin is given.\n"+
		"- Long output is cut in the middle (%s): filter or summarise in the code.",
		size(l.Tmp), seconds(l.DefaultTimeout), seconds(l.MaxTimeout), size(l.Memory), processors(l.CPUs), count(l.PIDs),
		cut)

	environment = oneLine(environment)
	if room := maxTextBytes - len(before) - len(network) - len(after) - len(" "); len(environment) > room {
		const ellipsis = "…"
		cut := max(room-len(ellipsis), 0)
		for cut > 0 && !utf8.RuneStart(environment[cut]) {
			cut--
		}
		environment = environment[:cut] + ellipsis
	}
	if environment != "" {
		network += " " + environment
	}
	return before + network + after
}

// instructions stand in the system prompt of some clients, where the
// description does not.
func instructions(opts Options) string {
	l := opts.Limits
	return fmt.Sprintf("Use %s whenever the answer needs exact computation, data processing or actually running Bash or Python code. "+
		"Each call runs in a new, empty sandbox without network; nothing persists from call to call, so put all steps into one call. "+
		"Only what is printed is returned. The time limit is %d s unless timeout_seconds is given, at most %d s.",
		toolName, seconds(l.DefaultTimeout), seconds(l.MaxTimeout))
}

// inputSchema uses only type, description, enum, properties and required: each
// of additionalProperties, default, $ref and anyOf is refused by some client.
// The members stand in the order in which a model should write them.
func inputSchema(l sandbox.Limits) json.RawMessage {
	type property struct {
		Type        string             `json:"type"`
		Enum        []sandbox.Language `json:"enum,omitempty"`
		Description string             `json:"description"`
	}
	type properties struct {
		Language property `json:"language"`
		Code     property `json:"code"`
		Timeout  property `json:"timeout_seconds"`
		Stdin    property `json:"stdin"`
	}
	return mustMarshal(struct {
		Type       string     `json:"type"`
		Properties properties `json:"properties"`
		Required   []string   `json:"required"`
	}{
		Type: "object",
		Properties: properties{
			Language: property{"string", sandbox.Languages(), "Interpreter: " + languages() + "."},
			Code:     property{"string", nil, fmt.Sprintf("Complete source text to run, at most %s bytes.", count(l.MaxCodeBytes))},
			Timeout: property{"integer", nil, fmt.Sprintf("Time limit in whole seconds, 1 to %d. Default %d.",
				seconds(l.MaxTimeout), seconds(l.DefaultTimeout))},
			Stdin: property{"string", nil, fmt.Sprintf("What the program reads on standard input, at most %s bytes. Default: nothing.", count(l.MaxStdinBytes))},
		},
		Required: []string{"language", "code"},
	})
}

func mustMarshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only plain structs come here
	}
	return b
}

func seconds(d time.Duration) int { return int(d / time.Second) }

// size writes bytes in the largest unit that needs no fraction: 1 GiB, 768 MiB.
func size(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if u := int64(1) << (30 - 10*i); n >= u && n%u == 0 {
			return count(n/u) + " " + unit
		}
	}
	return count(n) + " bytes"
}

func processors(n float64) string {
	if n == 1 {
		return "1 CPU"
	}
	return strconv.FormatFloat(n, 'g', -1, 64) + " CPUs"
}

// count writes a number for people: 16,000.
func count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// oneLine folds all white space, so that a sentence stays one.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
