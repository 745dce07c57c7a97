package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// model stands in for a model and its API: Anthropic's Messages, OpenAI's
// Responses and Chat Completions, and Gemini's. It calls execute_code with each
// of calls in turn, and ends its turn when it has seen all results.
type model struct {
	url   string
	calls []object

	mu      sync.Mutex
	tool    json.RawMessage   // guarded by mu; the tool's definition as it was sent
	name    string            // guarded by mu; and its name, with the namespace where there is one
	results []json.RawMessage // guarded by mu; the results of the calls as they were sent
	prompts []string          // guarded by mu; the bodies of all requests
}

// turn is what a model does next.
type turn struct {
	id              string // of the call
	name, namespace string // of the tool to call, "" for none
	args            string // JSON
	text            string // to say, where no tool is called
}

func newModel(t *testing.T, calls ...object) *model {
	t.Helper()
	m := &model{calls: calls}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", m.messages)
	mux.HandleFunc("POST /v1/responses", m.responses)
	mux.HandleFunc("POST /v1/chat/completions", m.completions)
	mux.HandleFunc("POST /v1beta/models/{call}", m.gemini)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		t.Logf("the model's API knows no %s %s", r.Method, r.URL.Path)
		http.NotFound(w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

// saw returns what the model was told.
func (m *model) saw() (name string, tool json.RawMessage, results []json.RawMessage, prompts string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.name, m.tool, m.results, strings.Join(m.prompts, "\n")
}

// take notes what a request says of the tool and its results, and decides.
func (m *model) take(body []byte, name, namespace string, tool json.RawMessage, results []json.RawMessage) turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompts = append(m.prompts, string(body))
	if tool != nil {
		m.tool, m.name = tool, strings.TrimPrefix(namespace+"/"+name, "/")
	}
	if len(results) > len(m.results) {
		m.results = results
	}
	if tool == nil || len(results) >= len(m.calls) {
		return turn{text: "Done."}
	}
	args, _ := json.Marshal(m.calls[len(results)])
	return turn{id: fmt.Sprintf("call_%d", len(results)+1), name: name, namespace: namespace, args: string(args)}
}

// functions finds execute_code in a list of tools, also within a namespace.
func functions(tools []json.RawMessage) (name, namespace string, tool json.RawMessage) {
	for _, raw := range tools {
		var t struct {
			Name     string
			Type     string
			Function struct{ Name string }
			Tools    []json.RawMessage
		}
		if json.Unmarshal(raw, &t) != nil {
			continue
		}
		if name, _, inner := functions(t.Tools); inner != nil {
			return name, t.Name, raw
		}
		for _, name := range []string{t.Name, t.Function.Name} {
			if strings.HasSuffix(name, "execute_code") {
				return name, "", raw
			}
		}
	}
	return "", "", nil
}

// read decodes a request.
func read(w http.ResponseWriter, r *http.Request, into any) (body []byte, ok bool) {
	var raw json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	if err := json.Unmarshal(raw, into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, false
	}
	return raw, true
}

// stream writes server-sent events. An event with a type is named after it.
func stream(w http.ResponseWriter, events ...object) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		if name, ok := event["type"]; ok {
			_, _ = fmt.Fprintf(w, "event: %s\n", name)
		}
		data, _ := json.Marshal(event)
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
}

func (m *model) messages(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Tools    []json.RawMessage
		Messages []struct{ Content json.RawMessage }
	}
	body, ok := read(w, r, &req)
	if !ok {
		return
	}
	var results []json.RawMessage
	for _, message := range req.Messages {
		var blocks []json.RawMessage
		_ = json.Unmarshal(message.Content, &blocks) // or it is a string
		for _, block := range blocks {
			var b struct{ Type string }
			if _ = json.Unmarshal(block, &b); b.Type == "tool_result" {
				results = append(results, block)
			}
		}
	}
	name, _, tool := functions(req.Tools)
	turn := m.take(body, name, "", tool, results)
	block, delta, reason := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": turn.text}, "end_turn"
	if turn.name != "" {
		block = object{"type": "tool_use", "id": turn.id, "name": turn.name, "input": object{}}
		delta, reason = object{"type": "input_json_delta", "partial_json": turn.args}, "tool_use"
	}
	usage := object{"input_tokens": 10, "output_tokens": 10}
	stream(w,
		object{"type": "message_start", "message": object{"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in",
			"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage}},
		object{"type": "content_block_start", "index": 0, "content_block": block},
		object{"type": "content_block_delta", "index": 0, "delta": delta},
		object{"type": "content_block_stop", "index": 0},
		object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": usage},
		object{"type": "message_stop"},
	)
}

func (m *model) responses(w http.ResponseWriter, r *http.Request) {
	var req struct{ Tools, Input []json.RawMessage }
	body, ok := read(w, r, &req)
	if !ok {
		return
	}
	var results []json.RawMessage
	for _, item := range req.Input {
		var i struct{ Type string }
		if _ = json.Unmarshal(item, &i); i.Type == "function_call_output" {
			results = append(results, item)
		}
	}
	name, namespace, tool := functions(req.Tools)
	turn := m.take(body, name, namespace, tool, results)
	item := object{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
		"content": []any{object{"type": "output_text", "text": turn.text, "annotations": []any{}}}}
	if turn.name != "" {
		item = object{"type": "function_call", "id": "fc_" + turn.id, "call_id": turn.id, "name": turn.name, "arguments": turn.args, "status": "completed"}
		if turn.namespace != "" {
			item["namespace"] = turn.namespace
		}
	}
	response := object{"id": "resp_1", "object": "response", "status": "completed", "output": []any{item},
		"usage": object{"input_tokens": 10, "output_tokens": 10, "total_tokens": 20, "input_tokens_details": nil, "output_tokens_details": nil}}
	stream(w,
		object{"type": "response.created", "response": object{"id": "resp_1"}},
		object{"type": "response.output_item.added", "output_index": 0, "item": item},
		object{"type": "response.output_item.done", "output_index": 0, "item": item},
		object{"type": "response.completed", "response": response},
	)
}

func (m *model) completions(w http.ResponseWriter, r *http.Request) {
	var req struct{ Tools, Messages []json.RawMessage }
	body, ok := read(w, r, &req)
	if !ok {
		return
	}
	var results []json.RawMessage
	for _, message := range req.Messages {
		var msg struct{ Role string }
		if _ = json.Unmarshal(message, &msg); msg.Role == "tool" {
			results = append(results, message)
		}
	}
	name, _, tool := functions(req.Tools)
	turn := m.take(body, name, "", tool, results)
	delta, reason := object{"role": "assistant", "content": turn.text}, "stop"
	if turn.name != "" {
		delta = object{"role": "assistant", "tool_calls": []any{object{"index": 0, "id": turn.id, "type": "function",
			"function": object{"name": turn.name, "arguments": turn.args}}}}
		reason = "tool_calls"
	}
	chunk := func(delta object, reason any) object {
		return object{"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in",
			"choices": []any{object{"index": 0, "delta": delta, "finish_reason": reason}}}
	}
	stream(w, chunk(delta, nil), chunk(object{}, reason))
	_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
}

func (m *model) gemini(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Tools    []struct{ FunctionDeclarations []json.RawMessage }
		Contents []struct {
			Parts []struct{ FunctionResponse json.RawMessage }
		}
	}
	body, ok := read(w, r, &req)
	if !ok {
		return
	}
	var (
		results []json.RawMessage
		tool    json.RawMessage
		name    string
	)
	for _, content := range req.Contents {
		for _, part := range content.Parts {
			if part.FunctionResponse != nil {
				results = append(results, part.FunctionResponse)
			}
		}
	}
	for _, tools := range req.Tools {
		if n, _, found := functions(tools.FunctionDeclarations); found != nil {
			name, tool = n, found
		}
	}
	turn := m.take(body, name, "", tool, results)
	part := object{"text": turn.text}
	if turn.name != "" {
		part = object{"functionCall": object{"name": turn.name, "args": json.RawMessage(turn.args)}}
	}
	event := object{
		"candidates":    []any{object{"content": object{"role": "model", "parts": []any{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": object{"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20},
	}
	if strings.HasSuffix(r.PathValue("call"), ":streamGenerateContent") {
		stream(w, event)
		return
	}
	_ = json.NewEncoder(w).Encode(event)
}

// texts collects the strings in a JSON value.
func texts(raw json.RawMessage) (found []string) {
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			found = append(found, v)
		case []any:
			for _, e := range v {
				walk(e)
			}
		case object:
			for _, e := range v {
				walk(e)
			}
		}
	}
	var v any
	_ = json.Unmarshal(raw, &v) // it was part of JSON
	walk(v)
	return found
}
