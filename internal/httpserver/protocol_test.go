package httpserver

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"code-execution-sandbox/internal/mcpserver"
)

func TestRow12Initialize(t *testing.T) {
	s := start(t)
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26", "2024-11-05": "2024-11-05", "1999-01-01": "2025-11-25",
	} {
		body, _ := legacyEra.request(1, "initialize", `"protocolVersion": "`+asked+`", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}`, "")
		r := s.do("POST", "/mcp", body)
		m := r.last(t)
		if r.status != 200 || m.Result["protocolVersion"] != want {
			t.Errorf("%s: got %d %v, want %s", asked, r.status, m.Result["protocolVersion"], want)
		}
		// Row 20.
		if got := m.Result["capabilities"]; !reflect.DeepEqual(got, map[string]any{"tools": map[string]any{}}) {
			t.Errorf("capabilities are %v", got)
		}
		if r.header.Get("Mcp-Session-Id") == "" {
			t.Error("no session id")
		}
	}
}

func TestRow13InitializedAndPing(t *testing.T) {
	s := start(t)
	if r := s.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Protocol-Version", "2025-11-25"); r.status != 202 || r.body != "" {
		t.Errorf("got %d %q, want 202 and nothing", r.status, r.body)
	}
	body, headers := legacyEra.request(1, "ping", "", "")
	if m := s.do("POST", "/mcp", body, headers...).last(t); m.Result == nil || len(m.Result) != 0 {
		t.Errorf("got %v, want {}", m.Result)
	}
}

// A session is nothing that can be lost: any id will do, and none.
func TestRow14Sessions(t *testing.T) {
	s := start(t)
	for _, id := range []string{"", "unknown", "a stale one"} {
		for _, version := range []string{"", "2025-11-25", "2024-11-05"} {
			body, _ := legacyEra.call(1, "echo", "")
			r := s.do("POST", "/mcp", body, "Mcp-Session-Id", id, "Mcp-Protocol-Version", version)
			if r.status != 200 || r.last(t).text(t) != "exit_code: 0\nstdout:\necho" {
				t.Errorf("session %q, version %q: got %d %s", id, version, r.status, r.body)
			}
		}
	}
}

func TestRow16Discover(t *testing.T) {
	s := start(t)
	body, headers := modernEra.request(1, "server/discover", "", "")
	r := s.do("POST", "/mcp", body, headers...)
	result := r.last(t).Result
	versions, _ := result["supportedVersions"].([]any)
	if !slices.Contains(versions, any("2026-07-28")) || !slices.Contains(versions, any("2025-11-25")) {
		t.Errorf("supportedVersions is %v", versions)
	}
	if got := result["capabilities"]; !reflect.DeepEqual(got, map[string]any{"tools": map[string]any{}}) {
		t.Errorf("capabilities are %v", got)
	}
	if got, _ := result["instructions"].(string); !strings.Contains(got, "execute_code") {
		t.Errorf("instructions are %q", got)
	}
	if result["ttlMs"] != 300_000.0 || result["cacheScope"] != "public" {
		t.Errorf("ttlMs is %v and cacheScope %v", result["ttlMs"], result["cacheScope"])
	}
	if meta, _ := result["_meta"].(map[string]any); meta["io.modelcontextprotocol/serverInfo"] == nil {
		t.Errorf("_meta is %v", meta)
	}
	if r.header.Get("Mcp-Session-Id") != "" {
		t.Error("a modern client got a session id")
	}
}

func TestRow17Mismatches(t *testing.T) {
	s := start(t)
	call, callHeaders := modernEra.call(1, "must not run", "")
	ping, pingHeaders := modernEra.request(1, "ping", "", "")
	future := strings.ReplaceAll(call, "2026-07-28", "2099-01-01")
	bare, _ := legacyEra.call(1, "must not run", "")
	for _, test := range []struct {
		name    string
		body    string
		headers []string
		status  int
		code    int
	}{
		{"version in header and body differ", call, append(slices.Clip(callHeaders), "Mcp-Protocol-Version", "2025-11-25"), 400, -32020},
		{"unknown version", future, append(slices.Clip(callHeaders), "Mcp-Protocol-Version", "2099-01-01"), 400, -32022},
		{"no _meta", bare, callHeaders, 400, -32602},
		{"wrong name", call, append(slices.Clip(callHeaders), "Mcp-Name", "other"), 400, -32020},
		{"wrong method", call, append(slices.Clip(callHeaders), "Mcp-Method", "tools/list"), 400, -32020},
		{"ping", ping, pingHeaders, 404, -32601},
	} {
		r := s.do("POST", "/mcp", test.body, test.headers...)
		m := r.last(t)
		if m.Error == nil || r.status != test.status || m.Error.Code != test.code {
			t.Errorf("%s: got %d %s, want %d and %d", test.name, r.status, r.body, test.status, test.code)
			continue
		}
		if test.code == -32022 && m.Error.Data["supported"] == nil {
			t.Errorf("%s: data is %v", test.name, m.Error.Data)
		}
	}
}

func TestRow18ResultType(t *testing.T) {
	s := start(t)
	for _, method := range []string{"server/discover", "tools/list"} {
		body, headers := modernEra.request(1, method, "", "")
		wantComplete(t, method, s.do("POST", "/mcp", body, headers...).last(t))
	}
	wantComplete(t, "tools/call", s.run(modernEra, "echo", "").last(t))
	wantComplete(t, "tools/call", s.run(modernEra, "", "").last(t))
}

func wantComplete(t *testing.T, what string, m message) {
	t.Helper()
	meta, _ := m.Result["_meta"].(map[string]any)
	if m.Result["resultType"] != "complete" || meta["io.modelcontextprotocol/serverInfo"] == nil {
		t.Errorf("%s: resultType is %v, _meta %v", what, m.Result["resultType"], meta)
	}
}

func TestRow19ToolsList(t *testing.T) {
	for _, e := range eras {
		body, headers := e.request(1, "tools/list", "", "")
		lists := map[string]bool{}
		for range 2 { // a restart
			s := start(t)
			for range 3 {
				lists[s.do("POST", "/mcp", body, headers...).body] = true
			}
		}
		if len(lists) != 1 {
			t.Errorf("%s: %d different lists", e.name, len(lists))
		}
		for list := range lists {
			tools, _ := reply{body: list}.last(t).Result["tools"].([]any)
			if len(tools) != 1 {
				t.Fatalf("%s: %d tools, want 1", e.name, len(tools))
			}
			tool := tools[0].(map[string]any)
			// Row 20.
			hints, _ := tool["annotations"].(map[string]any)
			for _, hint := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
				if hints[hint] != false {
					t.Errorf("%s: %s is %v", e.name, hint, hints[hint])
				}
			}
			if tool["outputSchema"] != nil {
				t.Error("an output schema without the switch")
			}
		}
	}
}

func TestRow21UnknownTool(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		body, headers := e.request(1, "tools/call", `"name": "nope", "arguments": {}`, "")
		r := s.do("POST", "/mcp", body, append(headers, "Mcp-Name", "nope")...)
		want := map[era]int{legacyEra: 200, modernEra: 400}[e]
		if m := r.last(t); r.status != want || m.Error == nil || m.Error.Code != -32602 {
			t.Errorf("got %d %s", r.status, r.body)
		}
	})
}

func TestRow23And25BadArguments(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		long := strings.Repeat("SECRET_CODE", 10_000)
		for args, want := range map[string]string{
			`{"language":"bash"}`:                                    `invalid argument "code"`,
			`{"language":"ruby","code":"x"}`:                         `use "bash" or "python"`,
			`{"language":"bash","code":"x","timeout":0}`:             `invalid argument "timeout": must be a whole number from 1 to 60`,
			`{"language":"bash","code":"x","timeout_seconds":1e9}`:   `invalid argument "timeout_seconds"`,
			`{"language":"bash","code":"x","timeout_seconds":"abc"}`: `invalid argument "timeout_seconds"`,
			`{"language":"bash","code":""}`:                          `must not be empty`,
			`{"language":"bash","code":"` + long + `"}`:              `is 110000 bytes long, the limit is 65536 bytes`,
			`"nonsense"`: `invalid argument "arguments"`,
			`"{\"language\":\"bash\",\"code\":\"` + long[:11] + `\",\"stdin\":7}"`: `invalid argument "stdin"`,
		} {
			body, headers := e.request(1, "tools/call", `"name": "execute_code", "arguments": `+args, "")
			r := s.do("POST", "/mcp", body, headers...)
			m := r.last(t)
			if text := m.text(t); r.status != 200 || !m.isError() || !strings.Contains(text, want) || strings.Contains(text, "\n") {
				t.Errorf("%.60s: got %d, isError %v, %q", args, r.status, m.isError(), text)
			}
			if len(r.body) > 1000 || strings.Contains(r.body, "SECRET_CODE") {
				t.Errorf("%.60s: the answer has %d bytes: %.200s", args, len(r.body), r.body)
			}
		}
		body, headers := e.request(1, "tools/call", `"name": "execute_code"`, "")
		if m := s.do("POST", "/mcp", body, headers...).last(t); !m.isError() || !strings.Contains(m.text(t), "language") {
			t.Errorf("without arguments: got %v", m)
		}
	})
	// One line of audit for each of them, without the code.
	s := start(t)
	s.run(legacyEra, "", "")
	if log := s.log.String(); !strings.Contains(log, `msg="call ended"`) || !strings.Contains(log, "outcome=invalid") {
		t.Errorf("no audit event in %s", log)
	}
}

func TestRows27To35Results(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		for code, want := range map[string]struct {
			text  string
			error bool
		}{
			"exit 3":  {"exit_code: 3\nstdout:\nout", false},
			"binary":  {"exit_code: 0\nstdout (1 NUL byte left out; 2 bytes not UTF-8):\n\uFFFDa", false},
			"timeout": {"timed_out: killed after 10 s (raise timeout_seconds, at most 60)\n(no output)", true},
			"busy":    {"server busy (4 running, 8 queued); retry in a few seconds", true}, // row 43
		} {
			r := s.run(e, code, "")
			m := r.last(t)
			if text := m.text(t); r.status != 200 || text != want.text || m.isError() != want.error {
				t.Errorf("%s: got %d, isError %v, %q", code, r.status, m.isError(), text)
			}
			if len(r.messages(t)) != 1 || m.Result["structuredContent"] != nil {
				t.Errorf("%s: got %s", code, r.body)
			}
			meta, _ := m.Result["_meta"].(map[string]any)
			delete(meta, "io.modelcontextprotocol/serverInfo")
			if b, _ := json.Marshal(meta); len(b) >= 300 || !strings.Contains(string(b), "code-execution-sandbox/result") {
				t.Errorf("%s: _meta is %s", code, b)
			}
		}
	})
}

func TestRow34Structured(t *testing.T) {
	inBothEras(t, func(t *testing.T, s *service, e era) {
		content, _ := s.run(e, "exit 3", "").last(t).Result["structuredContent"].(map[string]any)
		if content["exit_code"] != 3.0 || content["stdout"] != "out\n" {
			t.Errorf("got %v", content)
		}
	}, func(_ *Options, o *mcpserver.Options) { o.Structured = true })
}

// The SDK's own client, which picks the era by itself and validates structured
// results.
func TestSDKClient(t *testing.T) {
	for name, structured := range map[string]bool{"text": false, "structured": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(_ *Options, o *mcpserver.Options) { o.Structured = structured })
			client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint:   "http://" + s.addr + "/mcp",
				HTTPClient: &http.Client{Transport: bearer{s.client.Transport}},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"language": "bash", "code": "exit 3"}})
			if err != nil {
				t.Fatal(err)
			}
			if text := result.Content[0].(*mcp.TextContent).Text; result.IsError || text != "exit_code: 3\nstdout:\nout" {
				t.Errorf("got isError %v, %q", result.IsError, text)
			}
			if (result.StructuredContent != nil) != structured {
				t.Errorf("structured content is %v", result.StructuredContent)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-s.fake.started
				cancel()
			}()
			if _, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"language": "bash", "code": "wait"}}); err == nil {
				t.Error("a canceled call has a result")
			}
		})
	}
}

type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+testToken)
	return b.RoundTripper.RoundTrip(r)
}
