// Judges what a server of 2026-07-28 sent, by the schemas of the official package: JSON lines on standard input.
//
//   {"method": ..., "params": ..., "message": ...}   an answer, and the request that it is an answer to
//   {"message": ...}                                 a notification
//
// Says on each line what is wrong with one of them, and on the last how many it has judged.

import { createInterface } from "node:readline";
import { judgeModern, judgeModernError, judgeModernNotification } from "./shapes.mjs";

function judge({ method, params, message }) {
  if (method === undefined) judgeModernNotification(message);
  else if (message.error) judgeModernError(method, message.error);
  else judgeModern(method, params, message.result);
}

let judged = 0;
for await (const line of createInterface({ input: process.stdin })) {
  try {
    judge(JSON.parse(line));
  } catch (error) {
    console.log(JSON.stringify({ wrong: error.message }));
  }
  judged += 1;
}
console.log(JSON.stringify({ judged }));
