// Uses the server through a TypeScript SDK: node sdk.mjs URL v1|v2|v2-auto.
// Writes what each step gave as one line of JSON. The last step runs until a
// line on standard input, and is then aborted.
import { once } from "node:events";
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as Transport1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from "@modelcontextprotocol/client";

const [, , url, version] = process.argv;
const v1 = version === "v1";
const info = { name: "conformance", version: "1" };
const client = v1 ? new Client1(info) : new Client2(info, version === "v2-auto" ? { versionNegotiation: { mode: "auto" } } : undefined);
const auth = { requestInit: { headers: { Authorization: `Bearer ${process.env.SANDBOX_MCP_TOKEN}` } } };
await client.connect(new (v1 ? Transport1 : Transport2)(new URL(url), auth));

const say = (step, value) => console.log(JSON.stringify({ step, ...value }));
const call = (args, options) => {
  const params = { name: "execute_code", arguments: args };
  return v1 ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const answer = async (step, promise) => {
  try {
    const r = await promise;
    say(step, { text: r.content.map((c) => c.text).join("\n---\n"), isError: r.isError ?? false });
  } catch (e) {
    say(step, { code: e.code, error: e.message });
  }
};

say("connected", { text: client.getNegotiatedProtocolVersion?.() ?? "" });
say("tools", { text: (await client.listTools()).tools.map((t) => t.name).join() });
await answer("print", call({ language: "python", code: "print(6*7)" }));
await answer("exit", call({ language: "bash", code: "echo out; echo err >&2; exit 3" }));
await answer("stdin", call({ language: "python", code: "print(input()[::-1])", stdin: "hello\n" }));
await answer("limit", call({ language: "bash", code: "echo begun; sleep 60", timeout_seconds: 1 }));
await answer("invalid", call({ language: "ruby", code: "puts 1" }));
await answer("unknown", client.callTool({ name: "nope", arguments: {} }));
const seen = [];
// Less than the call takes: progress keeps it alive.
const patient = { onprogress: (p) => seen.push(p), resetTimeoutOnProgress: true, timeout: 10_000 };
await answer("progress", call({ language: "bash", code: "sleep 11; echo done", timeout_seconds: 60 }, patient));
say("notifications", { text: seen.map((p) => p.progress).join() });
const abort = new AbortController();
const running = answer("aborted", call({ language: "bash", code: "sleep 100", timeout_seconds: 110 }, { signal: abort.signal, timeout: 110_000 }));
await once(process.stdin, "data");
abort.abort("enough");
await running;
await once(process.stdin, "end"); // the connection stays until the test has looked
process.exit(0);
