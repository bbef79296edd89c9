// Takes the official TypeScript clients through every flow of the fixture server, on both generations of tasks.
//
//   node drive.mjs URL [2026-07-28 | 2025-11-25]
//
// One JSON line per flow: {generation, flow, ok, detail}. Exit code 1 when one failed, 2 when called wrongly.
// Every answer that crosses a session is validated with the schemas of ext-tasks, besides what the client does itself.
// A token in PERDURE_DRIVE_TOKEN is sent as a bearer token; without one, a server may refuse to list tasks.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createSessionPortFromClient, withTasks } from "@modelcontextprotocol/ext-tasks/client";
import * as v1 from "@modelcontextprotocol/ext-tasks/core/v1";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { expect, judgeLegacy, judgeModern, judgeModernNotification, RELATED, same, validate } from "./shapes.mjs";

const MODERN = "2026-07-28";
const LEGACY = "2025-11-25";
const EXTENSION = "io.modelcontextprotocol/tasks";
const INFO = { name: "perdure-drive", version: "1.0.0" };
const PATIENCE = 25_000;

const [address, only] = process.argv.slice(2);
if (!address || (only && only !== MODERN && only !== LEGACY)) {
  console.error(`usage: drive.mjs URL [${MODERN} | ${LEGACY}]`);
  process.exit(2);
}
const url = new URL(address);
const token = process.env.PERDURE_DRIVE_TOKEN;
const OPTIONS = token ? { requestInit: { headers: { Authorization: `Bearer ${token}` } } } : {};

// Small tools

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const text = (result) => (result.content ?? []).map((block) => block.text ?? "").join("");

async function until(look, good, what) {
  const end = Date.now() + 20_000;
  for (;;) {
    const seen = await look();
    if (good(seen)) return seen;
    expect(Date.now() < end, `never saw ${what}; last: ${JSON.stringify(seen)}`);
    await pause(50);
  }
}

async function refusal(promise, what) {
  try {
    await promise;
  } catch (error) {
    const found = error?.code === undefined && error?.cause?.code !== undefined ? error.cause : error;
    expect(typeof found?.code === "number", `${what} failed without a JSON-RPC error: ${error}`);
    return found;
  }
  throw new Error(`${what} was not refused`);
}

// Sessions: the official client, the port of ext-tasks on it, and a judge in between

function judged(port, judge, counter) {
  return {
    endpointId: port.endpointId,
    taskCapabilities: port.taskCapabilities,
    get invalidated() {
      return port.invalidated;
    },
    async dispatch(request, options) {
      const response = await port.dispatch(request, options);
      if (response.kind === "result") {
        judge(request.method, request.params ?? {}, response.result);
        counter.answers += 1;
      }
      return response;
    },
    onServerRequest: (handler) => port.onServerRequest(handler),
    onNotification: (listener) => port.onNotification(listener),
    onInvalidated: (listener) => port.onInvalidated(listener),
  };
}

// ext-tasks needs a way around the client's codecs on 2026-07-28; the official transport is that way.
async function rawWire() {
  const wire = new StreamableHTTPClientTransport(url, OPTIONS);
  const waiting = new Map();
  let next = 1;
  wire.onmessage = (message) => {
    const settle = waiting.get(message.id);
    if (settle === undefined || message.method !== undefined) return;
    waiting.delete(message.id);
    settle(message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
  };
  wire.onerror = () => {};
  await wire.start();
  const dispatch = (request, options) =>
    new Promise((resolve, reject) => {
      const id = `raw:${next++}`;
      waiting.set(id, resolve);
      const sending = { headers: options?.context?.headers, requestSignal: options?.signal };
      wire.send({ jsonrpc: "2.0", id, ...request }, sending).catch((error) => {
        waiting.delete(id);
        const body = refusalIn(error);
        if (body) resolve({ kind: "error", error: body });
        else reject(error);
      });
    });
  return { dispatch, close: () => wire.close() };
}

// The transport delivers a refusal with status 400 as a message; with any other status it is in the error's text.
function refusalIn(error) {
  try {
    return JSON.parse(error?.data?.text ?? error?.text ?? "").error;
  } catch {
    return undefined;
  }
}

async function modernSession(onInputRequest, extensions = { [EXTENSION]: {} }) {
  const capabilities = { elicitation: {}, extensions };
  const client = new Client(INFO, { capabilities, versionNegotiation: { mode: { pin: MODERN } } });
  await client.connect(new StreamableHTTPClientTransport(url, OPTIONS));
  const wire = await rawWire();
  const port = createSessionPortFromClient(client, "perdure", {
    rawDispatch: wire.dispatch,
    v2RequestFraming: { protocolVersion: MODERN, clientInfo: INFO, clientCapabilities: capabilities },
  });
  expect(port.taskCapabilities.generation === "v2", "the client does not see the tasks extension");
  return opened(client, port, judgeModern, onInputRequest, () => wire.close());
}

async function legacySession(onInputRequest) {
  const client = new Client(INFO, { capabilities: { elicitation: {} }, versionNegotiation: { mode: "legacy" } });
  await client.connect(new StreamableHTTPClientTransport(url, OPTIONS));
  same(client.getNegotiatedProtocolVersion?.() ?? LEGACY, LEGACY, "negotiated version");
  const port = createSessionPortFromClient(client, "perdure");
  expect(port.taskCapabilities.generation === "v1", "the client does not see capabilities.tasks");
  validate(v1.ServerTaskCapabilitiesV1Schema, port.taskCapabilities.capabilities, "capabilities.tasks");
  // The session is left, not terminated: where a notification of the client is still on its way then, the server's
  // SDK answers it, fails to deliver it and drops the connection, which meets whatever the next flow sends on it.
  return opened(client, port, judgeLegacy, onInputRequest, () => {});
}

function opened(client, port, judge, onInputRequest, release) {
  const counter = { answers: 0, errors: [] };
  const watched = judged(port, judge, counter);
  const tasks = withTasks(watched, { onInputRequest, onError: (error) => counter.errors.push(String(error)) });
  const ask = async (method, params = {}) => {
    const response = await watched.dispatch({ method, params });
    if (response.kind === "error") throw Object.assign(new Error(response.error.message), response.error);
    return response.result;
  };
  const close = async () => {
    await tasks.close().catch(() => {});
    await Promise.resolve(release()).catch(() => {});
    await client.close().catch(() => {});
  };
  return { client, port: watched, tasks, ask, counter, close };
}

async function within(opening, body) {
  const session = await opening;
  try {
    const detail = await body(session);
    same(session.counter.errors, [], "errors in the background");
    return `${detail ?? ""} (${session.counter.answers} answers valid)`.trim();
  } finally {
    await session.close();
  }
}

const AS_TASK = { task: { preference: "require", retentionMs: 60_000 } };

async function begun(session, name, args, options = AS_TASK) {
  const execution = await session.tasks.callTool(name, args, options);
  expect(execution.kind === "task", `${name} was answered at once`);
  return execution;
}

async function settled(session, name, args) {
  const execution = await begun(session, name, args);
  const { outcome } = await execution.settle();
  return outcome;
}

const completed = (outcome) => {
  expect(outcome.status === "completed", `ended ${outcome.status}: ${outcome.error ?? ""}`);
  return outcome.result;
};

const accepting = (content) => async () => ({ action: "accept", content });
const declining = async () => ({ action: "decline" });

// Flows that read the same on both generations

function shared(open) {
  return {
    "plain call": () =>
      within(open(), async (session) => {
        const execution = await session.tasks.callTool("greet", { name: "Ada" });
        same(execution.kind, "immediate", "greet");
        same(text(completed(await execution.result())), "Hello, Ada!", "greeting");
      }),

    "task completes": () =>
      within(open(), async (session) => {
        const execution = await begun(session, "slow_compute", { seconds: 1, label: "drive" });
        const seen = [];
        const { outcome } = await execution.settle({
          onEvent: (event) => event.type === "task" && seen.push(event.task.status),
        });
        const result = completed(outcome);
        expect(!result.isError && text(result) !== "", "no text in the result");
        return seen.join(" > ");
      }),

    "task is cancelled": () =>
      within(open(), async (session) => {
        const execution = await begun(session, "slow_compute", { seconds: 60, label: "cancel" });
        const { taskId } = execution.handle;
        await execution.cancel();
        same((await execution.result()).status, "cancelled", "outcome");
        const view = await until(() => session.tasks.task(taskId).snapshot(), (task) => task.status !== "working", "an end");
        same(view.status, "cancelled", "status");
      }),

    "elicitation is accepted": () =>
      within(open(accepting({ confirm: true })), async (session) => {
        const result = completed(await answered(session, "confirm_delete", { filename: "a.txt" }));
        expect(!result.isError, "an error");
        return text(result);
      }),

    "elicitation is declined": () =>
      within(open(declining), async (session) => {
        const declined = text(completed(await answered(session, "confirm_delete", { filename: "a.txt" })));
        return declined;
      }),

    "input before the task": () =>
      within(open(accepting({ name: "Grace", user_name: "Grace" })), async (session) => {
        const result = completed(await answered(session, "test_tool_with_task", {}));
        expect(text(result).includes("Grace"), `the answer was lost: ${text(result)}`);
      }),

    "resumed by another client": async () => {
      let reference;
      await within(open(), async (session) => {
        const execution = await begun(session, "slow_compute", { seconds: 1, label: "resume" });
        await execution.handoff((given) => void (reference = given));
        // A client that closes with an execution that is not settled cancels its task; a handed-off one is
        // settled a moment after.
        await execution.result().catch(() => {});
      });
      return within(open(), async (session) => {
        const execution = await session.tasks.resumeTask(reference);
        expect(text(completed(await execution.result())) !== "", "no text in the result");
      });
    },

    "unknown task": () =>
      within(open(), async (session) => {
        const error = await refusal(session.tasks.task("no-such-task").snapshot(), "tasks/get of an unknown id");
        same(error.code, -32602, "code");
      }),
  };
}

// A task that asks, driven to its end by tasks/get alone: at 2025-11-25 ext-tasks calls tasks/result only after the
// end, and expects the questions on any stream of its session.
async function answered(session, name, args) {
  return (await begun(session, name, args)).result();
}

// The same at 2025-11-25 as its text recommends: the result is requested as soon as the task says that it waits.
async function answeredOnResult(session, name, args) {
  const execution = await begun(session, name, args);
  const { taskId } = execution.handle;
  await until(() => session.tasks.task(taskId).snapshot(), (task) => task.status !== "working", "input_required");
  await session.ask("tasks/result", { taskId });
  return execution.result();
}

// 2026-07-28

async function twoInputsModern(session) {
  const execution = await begun(session, "multi_input", {});
  const controller = session.tasks.task(execution.handle.taskId);
  await execution.detach();
  const keys = (task) => Object.keys(task.raw.inputRequests ?? {});
  const both = await until(() => controller.snapshot(), (task) => keys(task).length === 2, "two questions");
  const [first, second] = keys(both);
  const answer = { action: "accept", content: { name: "one", confirm: true } };
  await controller.update({ [first]: answer });
  const left = await controller.snapshot();
  same([left.status, keys(left)], ["input_required", [second]], "after one answer");
  await controller.update({ [first]: answer, "never-asked": answer });
  same(keys(await controller.snapshot()), [second], "after answering twice");
  await controller.update({ [second]: answer });
  completed(await controller.result());
}

async function pushed(session) {
  const notes = [];
  session.port.onNotification((note) => notes.push(note));
  const execution = await begun(session, "slow_compute", { seconds: 1, label: "push" });
  const { taskId } = execution.handle;
  await execution.detach();
  const subscription = await session.client.listen({ taskIds: [taskId] });
  const mine = () => notes.filter((note) => note.method === "notifications/tasks");
  const last = await until(() => mine().at(-1)?.params, (params) => params?.status === "completed", "the end, pushed");
  for (const note of mine()) judgeModernNotification({ jsonrpc: "2.0", ...note });
  await subscription.close();
  const got = await session.ask("tasks/get", { taskId });
  for (const key of ["taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "result"])
    same(last[key], got[key], `${key} as pushed`);
  same(notes.length, mine().length, "notifications of other kinds on the stream");
  return mine().map((note) => note.params.status).join(" > ");
}

async function undeclared() {
  const client = new Client(INFO, { capabilities: {}, versionNegotiation: { mode: { pin: MODERN } } });
  await client.connect(new StreamableHTTPClientTransport(url, OPTIONS));
  try {
    const sync = await client.callTool({ name: "slow_compute", arguments: { seconds: 0, label: "plain" } });
    expect(text(sync) !== "", "no text in the result");
    const error = await refusal(client.callTool({ name: "failing_job", arguments: {} }), "a tool that needs a task");
    same(error.code, -32021, "code");
    same(error.data?.requiredCapabilities?.extensions, { [EXTENSION]: {} }, "the capability that it names");
    const listening = await refusal(client.listen({ taskIds: ["any"] }, { timeout: PATIENCE }), "listening for tasks");
    same(listening.code, -32021, "code for listening");
  } finally {
    await client.close();
  }
}

const modern = {
  ...shared(modernSession),

  "tool reports an error": () =>
    within(modernSession(), async (session) => {
      const result = completed(await settled(session, "failing_job", {}));
      same(result.isError, true, "isError");
    }),

  "protocol error": () =>
    within(modernSession(), async (session) => {
      const outcome = await settled(session, "protocol_error_job", {});
      same(outcome.status, "failed", "outcome");
      expect(Number.isInteger(outcome.error.code), `no code in ${outcome.error}`);
      return `${outcome.error.code} ${outcome.error.message}`;
    }),

  "two inputs, one by one": () => within(modernSession(), twoInputsModern),
  "two inputs at once": () =>
    within(modernSession(accepting({ name: "both", confirm: true })), async (session) => {
      completed(await settled(session, "multi_input", {}));
    }),

  "cancelling what has ended": () =>
    within(modernSession(), async (session) => {
      const execution = await begun(session, "slow_compute", { seconds: 0.2, label: "late" });
      const { taskId } = execution.handle;
      completed((await execution.settle()).outcome);
      await session.tasks.task(taskId).cancel();
      same((await session.tasks.task(taskId).snapshot()).status, "completed", "status");
    }),

  "updates are pushed": () => within(modernSession(), pushed),
  "client without the extension": undeclared,

  "what the revision removed": () =>
    within(modernSession(), async (session) => {
      for (const method of ["tasks/list", "tasks/result"])
        same((await refusal(session.ask(method, { taskId: "any" }), method)).code, -32601, method);
    }),
};

// 2025-11-25

async function failedLegacy(session, name) {
  const execution = await begun(session, name, {});
  const { taskId } = execution.handle;
  const { outcome } = await execution.settle();
  same(outcome.status, "failed", "outcome");
  expect((await session.tasks.task(taskId).snapshot()).statusMessage, "no statusMessage");
  return taskId;
}

async function listed(session) {
  if (!token && session.port.taskCapabilities.capabilities.list === undefined) {
    same((await refusal(session.ask("tasks/list"), "tasks/list")).code, -32601, "code");
    return "not offered to callers who cannot be told apart";
  }
  const ids = [];
  for (let count = 0; count < 3; count++) {
    const execution = await begun(session, "slow_compute", { seconds: 0, label: `list ${count}` });
    ids.push(execution.handle.taskId);
    completed((await execution.settle()).outcome);
  }
  const found = [];
  let cursor;
  let pages = 0;
  do {
    const page = await session.tasks.listTasks(cursor);
    found.push(...page.tasks.map((task) => task.taskId));
    cursor = page.nextCursor;
    pages += 1;
  } while (cursor !== undefined && pages < 1000);
  same(ids.filter((id) => !found.includes(id)), [], "tasks missing in the list");
  same(new Set(found).size, found.length, "tasks listed twice");
  same((await refusal(session.ask("tasks/list", { cursor: "no such cursor" }), "a bad cursor")).code, -32602, "code");
  return `${found.length} tasks on ${pages} pages`;
}

async function blocking(session) {
  const start = Date.now();
  const execution = await begun(session, "slow_compute", { seconds: 1.5, label: "block" });
  const { taskId } = execution.handle;
  await execution.detach();
  const result = await session.ask("tasks/result", { taskId });
  const waited = Date.now() - start;
  expect(waited > 1400, `answered after ${waited} ms`);
  same((await session.tasks.task(taskId).snapshot()).status, "completed", "status");
  const again = await session.ask("tasks/result", { taskId });
  same(again, result, "the result, asked for again");
  return `${waited} ms`;
}

async function combinations(session) {
  const call = (name, extra) => session.ask("tools/call", { name, arguments: { name: "Ada" }, ...extra });
  same((await refusal(call("greet", { task: {} }), "a task of a tool that forbids it")).code, -32601, "code");
  same((await refusal(call("failing_job", {}), "a plain call of a tool that needs a task")).code, -32601, "code");
  const { tools } = await session.client.listTools();
  const support = Object.fromEntries(tools.map((tool) => [tool.name, tool.execution?.taskSupport ?? "forbidden"]));
  const wanted = { greet: "forbidden", slow_compute: "optional", failing_job: "required" };
  same(Object.fromEntries(Object.keys(wanted).map((name) => [name, support[name]])), wanted, "taskSupport");
}

// The older SDK's own driver, which opens tasks/result as soon as a task waits for input.
async function streamed(answers, name, args) {
  const client = new OldClient(INFO, { capabilities: { elicitation: {}, tasks: { list: {}, cancel: {} } } });
  const asked = [];
  client.setRequestHandler(ElicitRequestSchema, async (request) => {
    asked.push(request.params);
    return answers[Math.min(asked.length, answers.length) - 1];
  });
  await client.connect(new OldTransport(url, OPTIONS));
  try {
    const seen = [];
    const options = { task: { ttl: 60_000 }, timeout: PATIENCE };
    const stream = client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, options);
    for await (const message of stream) {
      if (message.type === "error") throw message.error;
      if (message.type === "result") return { asked, seen, result: message.result };
      validate(v1.TaskV1Schema, message.task, message.type);
      seen.push(message.task.status);
      for (const params of asked) same(typeof params._meta?.[RELATED]?.taskId, "string", "related task of a question");
    }
    throw new Error("the stream ended without a result");
  } finally {
    await client.close();
  }
}

const legacy = {
  ...shared(legacySession),

  "optional tool without a task": () =>
    within(legacySession(), async (session) => {
      const args = { seconds: 0, label: "sync" };
      const execution = await session.tasks.callTool("slow_compute", args, { task: { preference: "forbid" } });
      same(execution.kind, "immediate", "slow_compute");
      expect(text(completed(await execution.result())) !== "", "no text in the result");
    }),

  "tool reports an error": () =>
    within(legacySession(), async (session) => {
      const taskId = await failedLegacy(session, "failing_job");
      same((await session.ask("tasks/result", { taskId })).isError, true, "isError");
    }),

  "protocol error": () =>
    within(legacySession(), async (session) => {
      const taskId = await failedLegacy(session, "protocol_error_job");
      const error = await refusal(session.ask("tasks/result", { taskId }), "the result of a failed task");
      return `${error.code} ${error.message}`;
    }),

  "cancelling what has ended": () =>
    within(legacySession(), async (session) => {
      const execution = await begun(session, "slow_compute", { seconds: 0, label: "late" });
      const { taskId } = execution.handle;
      completed((await execution.settle()).outcome);
      same((await refusal(session.ask("tasks/cancel", { taskId }), "a late cancel")).code, -32602, "code");
    }),

  "two inputs at once": () =>
    within(legacySession(accepting({ name: "both", confirm: true })), async (session) => {
      completed(await answered(session, "multi_input", {}));
    }),

  "elicitation on the stream of the result": () =>
    within(legacySession(accepting({ confirm: true })), async (session) => {
      const args = { filename: "a.txt" };
      return text(completed(await answeredOnResult(session, "confirm_delete", args)));
    }),

  "two inputs, one by one": async () => {
    const answer = { action: "accept", content: { name: "one", confirm: true } };
    const { asked, result } = await streamed([answer], "multi_input", {});
    same(asked.length, 2, "questions");
    return text(result);
  },

  "elicitation through the older SDK": async () => {
    const yes = { action: "accept", content: { confirm: true } };
    const { asked, seen, result } = await streamed([yes], "confirm_delete", { filename: "a.txt" });
    same(asked.length, 1, "questions");
    return `${seen.join(" > ")}: ${text(result)}`;
  },

  "task through the older SDK": async () => {
    const { seen, result } = await streamed([], "slow_compute", { seconds: 1, label: "old" });
    return `${seen.join(" > ")}: ${text(result)}`;
  },

  "tasks are listed": () => within(legacySession(), listed),
  "result blocks until the end": () => within(legacySession(), blocking),
  "wrong combinations": () => within(legacySession(), combinations),
};

// The run

async function limited(flow) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${PATIENCE} ms`)), PATIENCE);
  });
  try {
    return await Promise.race([flow(), late]);
  } finally {
    clearTimeout(timer);
  }
}

function explain(error) {
  const causes = [];
  for (let each = error; each && causes.length < 4; each = each.cause)
    causes.push(`${each.message ?? each}${typeof each.code === "number" ? ` [${each.code}]` : ""}`);
  return causes.join(" <- ");
}

async function judge(generation, flow, run) {
  const line = { generation, flow, ok: true, detail: "" };
  try {
    line.detail = (await limited(run)) ?? "";
  } catch (error) {
    line.ok = false;
    line.detail = explain(error);
  }
  process.stdout.write(`${JSON.stringify(line)}\n`);
  return line.ok;
}

process.on("unhandledRejection", () => {});

const verdicts = [];
for (const [generation, flows] of [[MODERN, modern], [LEGACY, legacy]])
  if (!only || only === generation)
    for (const [flow, run] of Object.entries(flows)) verdicts.push(await judge(generation, flow, run));
process.exit(verdicts.every(Boolean) ? 0 : 1);
