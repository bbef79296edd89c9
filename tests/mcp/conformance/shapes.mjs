// What each answer must look like, by the schemas that the official package of the tasks extension brings.

import * as v1 from "@modelcontextprotocol/ext-tasks/core/v1";
import * as v2 from "@modelcontextprotocol/ext-tasks/core/v2";

export const RELATED = "io.modelcontextprotocol/related-task";

export function expect(condition, message) {
  if (!condition) throw new Error(message);
}

export function same(actual, wanted, what) {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(wanted)];
  expect(left === right, `${what}: ${left} instead of ${right}`);
}

export function validate(schema, value, what) {
  const parsed = schema.safeParse(value);
  expect(parsed.success, `${what} is malformed: ${parsed.error?.message} in ${JSON.stringify(value)}`);
}

const CREATED = {
  task: v2.CreateTaskResultV2Schema,
  input_required: v2.InputRequiredCallToolResultV2Schema,
  complete: v2.CallToolResultV2Schema,
};

export function judgeModern(method, params, result) {
  if (method === "tools/call") {
    validate(CREATED[result.resultType] ?? CREATED.complete, result, `tools/call ${params.name}`);
    const leaked = ["task", "result", "error", "inputRequests", "requestState"].filter((key) => key in result);
    if (result.resultType === "task") same(leaked, [], "fields that a created task must not carry");
  } else if (method === "tasks/get") {
    validate(v2.GetTaskResultV2Schema, result, "tasks/get");
    expect("ttlMs" in result, "tasks/get without ttlMs");
    if (result.status === "completed") validate(v2.CallToolResultV2Schema, result.result, "the inlined result");
  } else if (method === "tasks/update" || method === "tasks/cancel") {
    validate(v2.UpdateTaskResultV2Schema, result, method);
    same(Object.keys(result).filter((key) => key !== "_meta"), ["resultType"], `fields of the answer to ${method}`);
  }
}

export function judgeModernNotification(message) {
  if (message.method === "notifications/tasks") {
    validate(v2.TaskStatusNotificationV2Schema, message, message.method);
  } else if (message.method === "notifications/subscriptions/acknowledged") {
    const { notifications } = message.params;
    validate(v2.TaskSubscriptionAcknowledgedNotificationsV2Schema, notifications, message.method);
  }
}

export const judgeModernError = (method, error) => validate(v2.ErrorV2Schema, error, `the refusal of ${method}`);

export function judgeLegacy(method, params, result) {
  const asked = params.task !== undefined;
  const schemas = {
    "tools/call": asked ? v1.CreateTaskResultV1Schema : v1.CallToolResultV1Schema,
    "tasks/get": v1.GetTaskResultV1Schema,
    "tasks/list": v1.ListTasksResultV1Schema,
    "tasks/cancel": v1.CancelTaskResultV1Schema,
    "tasks/result": v1.CallToolResultV1Schema,
  };
  if (method in schemas) validate(schemas[method], result, method);
  if (method === "tasks/result") same(result._meta?.[RELATED], { taskId: params.taskId }, "the related task of a result");
}
