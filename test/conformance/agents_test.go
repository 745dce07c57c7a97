package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"code-execution-sandbox/test/harness"
)

// agent is a coding agent that is given the entry which client-config prints
// and a model that is a stand-in.
type agent struct {
	name string
	// command sets the agent up in a home of its own.
	command func(t *testing.T, s *harness.Server, m *model) *client
}

var agents = []agent{
	{"claude-code", claudeCode},
	{"codex", codex},
	{"gemini-cli", geminiCLI},
	{"opencode", opencode},
}

const prompt = "Compute it with the tool."

func claudeCode(t *testing.T, s *harness.Server, m *model) *client {
	c := command(t, in(t, "@anthropic-ai", "claude-code-linux-"+arch, "claude"))
	config := c.write(t, ".mcp.json", clientEntry(t, s, "claude-code"))
	c.Args = append(c.Args, "--print", prompt, "--mcp-config", config, "--strict-mcp-config",
		"--allowedTools", "mcp__code_exec__execute_code", "--model", "claude-sonnet-4-5")
	c.Env = append(c.Env, "ANTHROPIC_BASE_URL="+m.url, "ANTHROPIC_API_KEY=none",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1")
	return c
}

// codex runs with the approval policy "never", as `codex exec` does: it refuses
// tools that may destroy something (row 20).
func codex(t *testing.T, s *harness.Server, m *model) *client {
	dir := in(t, "codex-linux-"+arch, "vendor")
	binaries, err := filepath.Glob(filepath.Join(dir, "*", "bin", "codex"))
	if err != nil || len(binaries) != 1 {
		t.Fatal(binaries, err)
	}
	c := command(t, binaries[0], "exec", "--skip-git-repo-check", prompt)
	c.write(t, ".codex/config.toml", `model = "stand-in"
model_provider = "stand-in"
approval_policy = "never"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.stand-in]
name = "stand-in"
base_url = "`+m.url+`/v1"
wire_api = "responses"
env_key = "MODEL_KEY"
`+clientEntry(t, s, "codex"))
	c.Env = append(c.Env, "MODEL_KEY=none")
	return c
}

func geminiCLI(t *testing.T, s *harness.Server, m *model) *client {
	c := command(t, in(t, "@google", "gemini-cli", "bundle", "gemini.js"),
		"--prompt", prompt, "--approval-mode", "yolo", "--skip-trust", "--model", "gemini-2.5-flash")
	c.write(t, ".gemini/settings.json", merge(t, clientEntry(t, s, "gemini-cli"), object{
		"security": object{"auth": object{"selectedType": "gemini-api-key"}},
		"privacy":  object{"usageStatisticsEnabled": false},
		"general":  object{"enableAutoUpdate": false},
	}))
	c.Env = append(c.Env, "GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL="+m.url)
	return c
}

func opencode(t *testing.T, s *harness.Server, m *model) *client {
	name := "opencode-linux-" + arch
	if arch == "x64" {
		name += "-baseline" // runs on every processor
	}
	c := command(t, in(t, name, "bin", "opencode"), "run", "--model", "stand-in/stand-in", prompt)
	c.write(t, "opencode.json", merge(t, clientEntry(t, s, "opencode"), object{
		"provider": object{"stand-in": object{
			"npm": "@ai-sdk/openai-compatible", "name": "stand-in",
			"options": object{"baseURL": m.url + "/v1", "apiKey": "none"},
			"models":  object{"stand-in": object{"name": "stand-in", "tool_call": true}},
		}},
		"autoupdate": false,
	}))
	c.Env = append(c.Env, "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1")
	return c
}

// merge adds members to a JSON object.
func merge(t *testing.T, entry string, more object) string {
	t.Helper()
	var all object
	if err := json.Unmarshal([]byte(entry), &all); err != nil {
		t.Fatal(err)
	}
	maps.Copy(all, more)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// drive runs an agent to its end and returns its model.
func (a agent) drive(t *testing.T, s *harness.Server, calls ...object) *model {
	t.Helper()
	m := newModel(t, calls...)
	c := a.command(t, s, m)
	code := c.exit(t)
	if _, _, results, _ := m.saw(); code != 0 || len(results) != len(calls) {
		t.Fatalf("exit code %d, results %s\n%s\n%s", code, results, c.stdout.String(), c.stderr.String())
	}
	return m
}

// What the model of each agent sees of the tool and of results stands in
// testdata/agents, and nothing of either may be lost on the way. Row 20: Codex
// runs the tool although nobody is there to approve it.
func TestRow20Agents(t *testing.T) {
	s := harness.Serve(t, harness.Options(t), long)
	session := s.Connect(t)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	description, instructions := list.Tools[0].Description, session.InitializeResult().Instructions
	calls := []object{
		{"language": "python", "code": "import sys\nprint('naïve ✓', 6*7)\nprint('to err', file=sys.stderr)\nsys.exit(3)"},
		{"language": "bash", "code": "echo begun; sleep 60", "timeout_seconds": 1}, // an error to MCP
	}
	want := []string{"exit_code: 3\nstdout:\nnaïve ✓ 42\nstderr:\nto err", tooLong}
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			name, tool, results, prompts := a.drive(t, s, calls...).saw()
			if !strings.Contains(strings.Join(texts(tool), "\n"), description) {
				t.Errorf("the description is not whole: %s", tool)
			}
			var seen strings.Builder
			seen.WriteString("The tool: " + name + "\n\n" + strings.ReplaceAll(indent(t, tool), mustJSON(t, description), `"(the description)"`) + "\n\n")
			told := "do not reach the model."
			if strings.Contains(prompts, strings.Trim(mustJSON(t, instructions), `"`)) {
				told = "reach the model."
			}
			seen.WriteString("The instructions " + told + "\n\n")
			for i, raw := range results {
				// Gemini CLI shows an error as the JSON of the whole result.
				got, quoted := strings.Join(texts(raw), "\n"), strings.Trim(mustJSON(t, want[i]), `"`)
				if !strings.Contains(got, want[i]) && (i == 0 || !strings.Contains(got, quoted)) {
					t.Errorf("the result is not whole: %q, want %q in it", got, want[i])
				}
				// As JSON, since its form is the client's; with line breaks.
				seen.WriteString(fmt.Sprintf("Result %d:\n\n", i+1) + strings.ReplaceAll(volatile.ReplaceAllString(indent(t, raw), "${1}N"), `\n`, "\n") + "\n\n")
			}
			golden(t, "agents/"+a.name+".txt", strings.TrimSuffix(seen.String(), "\n"))
		})
	}
}

// volatile is what differs from run to run: times, tokens, and ids that agents make.
var volatile = regexp.MustCompile(`(Wall time: |<total_tokens>|(?:duration|queued)_ms\W+|"id": "(?:fco|mcp)_)[0-9a-zA-Z._-]+`)

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func indent(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Row 38: a program that is silent for 75 s, in agents that give up after 60 s
// of silence.
func TestRow38LongCalls(t *testing.T) {
	if os.Getenv("CES_LONG") == "" {
		t.Skip("takes two minutes; CES_LONG=1 runs it")
	}
	s := harness.Serve(t, harness.Options(t), long)
	t.Run("agents", func(t *testing.T) {
		for _, a := range agents {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				_, _, results, _ := a.drive(t, s, object{"language": "bash", "code": "sleep 75; echo awake", "timeout_seconds": 120}).saw()
				if seen := strings.Join(texts(results[0]), "\n"); !strings.Contains(seen, "exit_code: 0\nstdout:\nawake") {
					t.Errorf("the model saw %q", seen)
				}
			})
		}
	})
}
