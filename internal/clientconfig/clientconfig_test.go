package clientconfig

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"
)

const secret = `literal-"token"-0123456789`

var options = Options{
	URL:        "http://sandbox.example:8788/mcp",
	TokenEnv:   "SANDBOX_MCP_TOKEN",
	MaxTimeout: 60 * time.Second,
	MaxWait:    30 * time.Second,
}

// parse reads an entry as its client would, with numbers as JSON has them.
func parse(t *testing.T, format, entry string) any {
	t.Helper()
	var tree any
	var err error
	switch format {
	case "json":
		err = json.Unmarshal([]byte(entry), &tree)
	case "toml":
		_, err = toml.Decode(entry, &tree)
	case "yaml":
		err = yaml.Unmarshal([]byte(entry), &tree)
	default:
		t.Fatalf("unknown format %q", format)
	}
	if err != nil {
		t.Fatalf("the entry is not %s: %v\n%s", format, err, entry)
	}
	return tree
}

// at follows a path of keys, or of indexes where a list stands.
func at(t *testing.T, tree any, path string) any {
	t.Helper()
	for key := range strings.SplitSeq(path, "/") {
		switch v := tree.(type) {
		case map[string]any:
			tree = v[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(v) {
				t.Fatalf("no %s in %v", path, v)
			}
			tree = v[i]
		default:
			t.Fatalf("no %s at %s: %v", path, key, tree)
		}
	}
	return tree
}

// want is what an entry says, by the path in the client's own shape.
var want = map[string]struct {
	url string
	// auth is where the credential stands, byEnv what stands there without a
	// token, literal what stands there with one ("" = the path is authLiteral).
	auth, byEnv, authLiteral, literal string
	timeout                           string
	units                             time.Duration
}{
	"miranda":        {"mcpServers/code_exec/url", "mcpServers/code_exec/headers/Authorization", "Bearer ${SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "", 0},
	"claude-code":    {"mcpServers/code_exec/url", "mcpServers/code_exec/headers/Authorization", "Bearer ${SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "mcpServers/code_exec/timeout", time.Millisecond},
	"codex":          {"mcp_servers/code_exec/url", "mcp_servers/code_exec/bearer_token_env_var", "SANDBOX_MCP_TOKEN", "mcp_servers/code_exec/http_headers/Authorization", "Bearer " + secret, "mcp_servers/code_exec/tool_timeout_sec", time.Second},
	"gemini-cli":     {"mcpServers/code-exec/httpUrl", "mcpServers/code-exec/headers/Authorization", "Bearer ${SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "mcpServers/code-exec/timeout", time.Millisecond},
	"opencode":       {"mcp/code_exec/url", "mcp/code_exec/headers/Authorization", "Bearer {env:SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "mcp/code_exec/timeout", time.Millisecond},
	"vscode":         {"servers/code_exec/url", "servers/code_exec/headers/Authorization", "Bearer ${input:code-exec-token}", "", "Bearer " + secret, "", 0},
	"cursor":         {"mcpServers/code_exec/url", "mcpServers/code_exec/headers/Authorization", "Bearer ${env:SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "", 0},
	"claude-desktop": {"mcpServers/code_exec/args/2", "mcpServers/code_exec/env/AUTH", "Bearer " + Placeholder, "", "Bearer " + secret, "", 0},
	"librechat":      {"mcpServers/code_exec/url", "mcpServers/code_exec/headers/Authorization", "Bearer ${SANDBOX_MCP_TOKEN}", "", "Bearer " + secret, "mcpServers/code_exec/timeout", time.Millisecond},
	"open-webui":     {"0/url", "0/key", Placeholder, "", secret, "", 0},
	"n8n":            {"nodes/0/parameters/endpointUrl", "nodes/0/parameters/authentication", "bearerAuth", "", "bearerAuth", "nodes/0/parameters/options/timeout", time.Millisecond},
}

func TestEntries(t *testing.T) {
	if len(Clients()) != len(want) {
		t.Errorf("%d clients, %d tested", len(Clients()), len(want))
	}
	for _, c := range Clients() {
		t.Run(c.Name, func(t *testing.T) {
			want, ok := want[c.Name]
			if !ok {
				t.Fatal("this client is not tested")
			}
			for _, token := range []string{"", secret} {
				o := options
				o.Token = token
				entry, err := Entry(c.Name, o)
				if err != nil {
					t.Fatal(err)
				}
				tree := parse(t, c.Format, entry)
				if got := at(t, tree, want.url); got != o.URL {
					t.Errorf("%s = %v, want %s", want.url, got, o.URL)
				}
				path, auth := want.auth, want.byEnv
				if token != "" {
					auth = want.literal
					if want.authLiteral != "" {
						path = want.authLiteral
					}
				}
				if got := at(t, tree, path); got != auth {
					t.Errorf("%s = %v, want %s", path, got, auth)
				}
				if want.timeout != "" {
					// 60 s to run, 30 s in the queue, 30 s of margin.
					if got, expected := fmt.Sprint(at(t, tree, want.timeout)), fmt.Sprint(int64(2*time.Minute/want.units)); got != expected {
						t.Errorf("%s = %s, want %s", want.timeout, got, expected)
					}
				}
				if !strings.HasSuffix(entry, "\n") || strings.Contains(entry, "<no value>") {
					t.Errorf("broken entry:\n%s", entry)
				}
			}
		})
	}
}

func TestEntryDetails(t *testing.T) {
	entry := func(client string, o Options) any {
		t.Helper()
		text, err := Entry(client, o)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for clients[i].Name != client {
			i++
		}
		return parse(t, clients[i].Format, text)
	}
	secure := options
	secure.URL = "https://sandbox.example/mcp"
	literal := options
	literal.Token = secret

	if got := fmt.Sprint(at(t, entry("claude-desktop", options), "mcpServers/code_exec/args")); !strings.Contains(got, "--allow-http") {
		t.Errorf("mcp-remote refuses http without --allow-http: %s", got)
	}
	if got := fmt.Sprint(at(t, entry("claude-desktop", secure), "mcpServers/code_exec/args")); strings.Contains(got, "--allow-http") {
		t.Errorf("https does not need --allow-http: %s", got)
	}
	if got := at(t, entry("vscode", options), "inputs/0/id"); got != "code-exec-token" {
		t.Errorf("VS Code asks for %v", got)
	}
	if got := at(t, entry("vscode", literal), "inputs"); got != nil {
		t.Errorf("VS Code asks for a token that the entry holds: %v", got)
	}
	if text, err := Entry("librechat", secure); err != nil || !strings.Contains(text, `["sandbox.example:443"]`) {
		t.Errorf("LibreChat wants the port also where it is the default: %v\n%s", err, text)
	}
}

func TestNotes(t *testing.T) {
	slow := options
	slow.MaxTimeout, slow.Token = 10*time.Minute, secret
	for _, c := range Clients() {
		notes, err := Notes(c.Name, options)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(notes, "\n")
		if !strings.Contains(all, c.Where) {
			t.Errorf("%s: the notes do not say where the entry belongs: %s", c.Name, all)
		}
		if entry, _ := Entry(c.Name, options); strings.Contains(entry, Placeholder) != strings.Contains(all, Placeholder) {
			t.Errorf("%s: the notes and the entry differ about the placeholder: %s", c.Name, all)
		}
		if strings.Contains(all, "gives up") {
			t.Errorf("%s: a warning about the limits by default: %s", c.Name, all)
		}

		notes, err = Notes(c.Name, slow)
		if err != nil {
			t.Fatal(err)
		}
		all = strings.Join(notes, "\n")
		if strings.Contains(all, "gives up") != (c.Limit > 0) {
			t.Errorf("%s: limit %s, notes: %s", c.Name, c.Limit, all)
		}
		if strings.Contains(all, secret) || strings.Contains(all, Placeholder) {
			t.Errorf("%s: the notes speak of the token: %s", c.Name, all)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct{ name, client, url, env, want string }{
		{"unknown client", "emacs", options.URL, "T", `unknown client "emacs", known are miranda, claude-code, codex, gemini-cli, opencode, vscode, cursor, claude-desktop, librechat, open-webui, n8n`},
		{"no scheme", "codex", "sandbox.example:8788/mcp", "T", `URL "sandbox.example:8788/mcp" is not http://host/path or https://host/path`},
		{"no host", "codex", "/mcp", "T", `URL "/mcp" is not http://host/path or https://host/path`},
		{"no variable", "codex", options.URL, "", `the variable for the token has no name of letters, digits and _`},
		{"not a variable", "codex", options.URL, "a}b", `the variable for the token has no name of letters, digits and _`},
	} {
		_, err := Entry(tt.client, Options{URL: tt.url, TokenEnv: tt.env})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for address, want := range map[string]string{
		"http://h.example:9":          "http://h.example:9/mcp",
		"https://h.example/":          "https://h.example/mcp",
		"https://h.example/tools/mcp": "https://h.example/tools/mcp",
		"h.example":                   "h.example", // which Entry refuses
	} {
		if got := Endpoint(address); got != want {
			t.Errorf("Endpoint(%q) = %q, want %q", address, got, want)
		}
	}
}
