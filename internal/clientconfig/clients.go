package clientconfig

import "time"

// The shapes were read from each client's documentation, and those of Claude
// Code 2.1, Codex 0.171, Gemini CLI 0.61, opencode 1.18 and mcp-remote 0.15 were
// seen to work.
var clients = []Client{
	{
		Name: "miranda", Title: "Miranda", Format: "json", reference: "${%s}",
		Where: "its list of MCP servers, here in the generic mcpServers form",
		notes: []string{
			"The model sees the tool as {{.Name}}_execute_code.",
			"Give a call at least {{.Seconds}} seconds.",
		},
		entry: `{
  "mcpServers": {
    {{q .Name}}: {
      "type": "http",
      "url": {{q .URL}},
      "headers": {"Authorization": {{q .Bearer}}}
    }
  }
}
`,
	},
	{
		// Without "type" it takes the entry for a stdio server. "timeout" bounds
		// a whole call, progress or not.
		Name: "claude-code", Title: "Claude Code", Format: "json", reference: "${%s}",
		Where: ".mcp.json in the project, or ~/.claude.json for every project",
		notes: []string{"`claude mcp list` shows whether it connects."},
		entry: `{
  "mcpServers": {
    {{q .Name}}: {
      "type": "http",
      "url": {{q .URL}},
      "headers": {"Authorization": {{q .Bearer}}},
      "timeout": {{.Millis}}
    }
  }
}
`,
	},
	{
		// The token is never inline under a key of its own: Codex refuses
		// "bearer_token" and ignores "headers".
		Name: "codex", Title: "Codex", Format: "toml", reference: "%s",
		Where: "~/.codex/config.toml",
		entry: `[mcp_servers.{{.Name}}]
url = {{q .URL}}
{{- if .Literal}}
http_headers = {"Authorization" = {{q .Bearer}}}
{{- else}}
bearer_token_env_var = {{q .TokenEnv}}
{{- end}}
tool_timeout_sec = {{.Seconds}}
`,
	},
	{
		// The name has no underscore: Gemini's policy rules split the tool's
		// name at the first one after "mcp_".
		Name: "gemini-cli", Title: "Gemini CLI", Format: "json", reference: "${%s}",
		Where: "~/.gemini/settings.json, or .gemini/settings.json in the project",
		entry: `{
  "mcpServers": {
    "code-exec": {
      "httpUrl": {{q .URL}},
      "headers": {"Authorization": {{q .Bearer}}},
      "timeout": {{.Millis}}
    }
  }
}
`,
	},
	{
		// Without "oauth": false a wrong token ends in a search for a login.
		Name: "opencode", Title: "opencode", Format: "json", reference: "{env:%s}",
		Where: "opencode.json in the project, or ~/.config/opencode/opencode.json",
		Limit: 5 * time.Minute, // opencode #39584
		notes: []string{"opencode 2 lists servers one level deeper, under mcp.servers, and knows no \"enabled\"."},
		entry: `{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    {{q .Name}}: {
      "type": "remote",
      "url": {{q .URL}},
      "enabled": true,
      "oauth": false,
      "headers": {"Authorization": {{q .Bearer}}},
      "timeout": {{.Millis}}
    }
  }
}
`,
	},
	{
		// No time limit can be set, and none is in force (vscode #311595).
		Name: "vscode", Title: "VS Code", Format: "json", reference: "${input:code-exec-token}",
		Where: ".vscode/mcp.json in the workspace, or `MCP: Open User Configuration`",
		entry: `{
  {{- if not .Literal}}
  "inputs": [
    {"type": "promptString", "id": "code-exec-token", "description": "Token of code-execution-sandbox", "password": true}
  ],
  {{- end}}
  "servers": {
    {{q .Name}}: {
      "type": "http",
      "url": {{q .URL}},
      "headers": {"Authorization": {{q .Bearer}}}
    }
  }
}
`,
	},
	{
		Name: "cursor", Title: "Cursor", Format: "json", reference: "${env:%s}",
		Where: "~/.cursor/mcp.json, or .cursor/mcp.json in the project",
		Limit: 5 * time.Minute, // cursor #3510
		entry: `{
  "mcpServers": {
    {{q .Name}}: {
      "url": {{q .URL}},
      "headers": {"Authorization": {{q .Bearer}}}
    }
  }
}
`,
	},
	{
		// No blank in the argument: Claude Desktop on Windows splits it there.
		Name: "claude-desktop", Title: "Claude Desktop, through mcp-remote", Format: "json",
		Where: "claude_desktop_config.json (Settings, Developer, Edit Config)",
		Limit: 4 * time.Minute, // claude-code #44032
		notes: []string{"It needs Node.js, and a restart to read the file."},
		entry: `{
  "mcpServers": {
    {{q .Name}}: {
      "command": "npx",
      "args": ["-y", "mcp-remote", {{q .URL}}, "--transport", "http-only", {{if .Plain}}"--allow-http", {{end}}"--header", "Authorization:${AUTH}"],
      "env": {"AUTH": {{q .Bearer}}}
    }
  }
}
`,
	},
	{
		Name: "librechat", Title: "LibreChat", Format: "yaml", reference: "${%s}",
		Where: "librechat.yaml",
		notes: []string{"LibreChat refuses private addresses: for one, allow it under mcpSettings as the comment in the entry shows."},
		entry: `mcpServers:
  {{.Name}}:
    type: streamable-http
    url: {{q .URL}}
    headers:
      Authorization: {{q .Bearer}}
    timeout: {{.Millis}}
    serverInstructions: true
# For a private address (before version 1.3.10 of the file: allowedDomains):
# mcpSettings:
#   allowedAddresses: [{{q .HostPort}}]
`,
	},
	{
		Name: "open-webui", Title: "Open WebUI", Format: "json",
		Where: "Admin Settings, External Tools, +, Import; or the value of TOOL_SERVER_CONNECTIONS before the first start",
		notes: []string{
			"The type is MCP (Streamable HTTP), from version 0.6.31 on.",
			"Set AIOHTTP_CLIENT_TIMEOUT_TOOL_SERVER={{.Seconds}} in its environment.",
		},
		entry: `[
  {
    "type": "mcp",
    "url": {{q .URL}},
    "path": "",
    "auth_type": "bearer",
    "key": {{q .Token}},
    "config": {"enable": true},
    "info": {"id": {{q .Name}}, "name": "Code execution", "description": "Runs bash and python in a sandbox"}
  }
]
`,
	},
	{
		Name: "n8n", Title: "n8n, MCP Client Tool", Format: "json", keepsToken: true,
		Where: "copy the entry and paste it on the canvas, then connect the node to the agent's Tool input",
		notes: []string{"Make a Bearer Auth credential with the token and choose it in the node: n8n keeps credentials outside of workflows."},
		entry: `{
  "nodes": [
    {
      "parameters": {
        "endpointUrl": {{q .URL}},
        "serverTransport": "httpStreamable",
        "authentication": "bearerAuth",
        "options": {"timeout": {{.Millis}}}
      },
      "type": "@n8n/n8n-nodes-langchain.mcpClientTool",
      "typeVersion": 1.2,
      "position": [0, 0],
      "name": {{q .Name}}
    }
  ],
  "connections": {}
}
`,
	},
}
