package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"code-execution-sandbox/test/harness"
)

// era is a version of the protocol that stands for those like it.
type era string

const (
	legacy era = "2025-11-25" // a handshake and a session
	modern era = "2026-07-28" // every request alone
)

// object is a JSON object.
type object = map[string]any

// request is one message as this era sends it.
func (e era) request(ctx context.Context, s *harness.Server, session, method string, params object) (*http.Request, error) {
	message := object{"jsonrpc": "2.0", "method": method, "params": params}
	if !strings.HasPrefix(method, "notifications/") {
		message["id"] = 1
	}
	if e == modern {
		params["_meta"] = object{
			"io.modelcontextprotocol/protocolVersion":    e,
			"io.modelcontextprotocol/clientCapabilities": object{},
			"io.modelcontextprotocol/clientInfo":         object{"name": "conformance", "version": "1"},
		}
	}
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + harness.Token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": string(e), "Mcp-Session-Id": session,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if e == modern {
		req.Header.Set("Mcp-Method", method)
		if method == "tools/call" {
			req.Header.Set("Mcp-Name", "execute_code")
		}
	}
	return req, nil
}

// answer is the end of an answer, and the whole of it.
type answer struct {
	status int
	header http.Header
	raw    string

	Result struct {
		Content []struct{ Type, Text string }
		IsError bool
		Meta    map[string]json.RawMessage `json:"_meta"`

		StructuredContent json.RawMessage
	}
	Error *struct {
		Code    int
		Message string
	}
}

// send sends a message and reads the whole answer.
func (e era) send(ctx context.Context, s *harness.Server, session, method string, params object) (*answer, error) {
	req, err := e.request(ctx, s, session, method, params)
	if err != nil {
		return nil, err
	}
	return do(req)
}

func do(req *http.Request) (*answer, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	a := &answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	if err != nil {
		return a, err
	}
	for line := range strings.Lines(a.raw) {
		data, ok := strings.CutPrefix(line, "data: ")
		if ok && strings.Contains(data, `"id":1`) {
			err = json.Unmarshal([]byte(data), a)
		}
	}
	return a, err
}

// arguments are the parameters of a call of the tool.
func arguments(args object) object { return object{"name": "execute_code", "arguments": args} }

// call calls the tool and reads the answer, which must be a result.
func (e era) call(t *testing.T, s *harness.Server, args object) *answer {
	t.Helper()
	a, err := e.send(t.Context(), s, "", "tools/call", arguments(args))
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusOK || a.Error != nil || len(a.Result.Content) != 1 {
		t.Fatalf("%d %.2000s", a.status, a.raw)
	}
	return a
}

// text is what the model reads.
func (a *answer) text() string {
	if len(a.Result.Content) == 0 {
		return ""
	}
	return a.Result.Content[0].Text
}

// inBothEras runs a test once per era, on one server.
func inBothEras(t *testing.T, s *harness.Server, test func(t *testing.T, e era)) {
	for name, e := range map[string]era{"legacy": legacy, "modern": modern} {
		t.Run(name, func(t *testing.T) { test(t, e) })
	}
}
