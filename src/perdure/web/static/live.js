// Replaces the fragments of an open page that changed on the server, and only those.
const LABELS = { waiting: "connecting", live: "live", lost: "reconnecting", ended: "ended" };

function setState(state) {
  const element = document.getElementById("live");
  if (!element || element.dataset.state === state) return;
  element.dataset.state = state;
  element.querySelector(".word").textContent = LABELS[state];
}

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

const CONTROLS = "input, select, textarea";
const FOCUSABLE = `a, button, summary, [tabindex], ${CONTROLS}`;

const isCheckable = (control) => ["checkbox", "radio"].includes(control.type);

function sameControl(control, within) {
  return [...within.querySelectorAll(CONTROLS)].find((each) =>
    each.name === control.name && each.type === control.type && (!isCheckable(control) || each.value === control.value));
}

function isChanged(control) {
  if (isCheckable(control)) return control.checked !== control.defaultChecked;
  if (!control.options) return control.value !== control.defaultValue;
  const first = [...control.options].find((each) => each.defaultSelected) ?? control.options[0];
  return control.value !== first?.value;
}

// Keep what the user has typed when the server sends the form again.
function keepInput(before, after) {
  for (const control of before.querySelectorAll(CONTROLS)) {
    const same = isChanged(control) && sameControl(control, after);
    if (!same) continue;
    if (isCheckable(control)) same.checked = control.checked;
    else same.value = control.value;
  }
}

function sameElement(element, before, after) {
  if (element.matches(CONTROLS)) return sameControl(element, after);
  return after.querySelectorAll(FOCUSABLE)[[...before.querySelectorAll(FOCUSABLE)].indexOf(element)];
}

// Replace an element, but keep the focus, the selection, and which tables are open.
function replace(before, after) {
  const focused = before.contains(document.activeElement) ? document.activeElement : null;
  const target = focused && sameElement(focused, before, after);
  const { selectionStart: from, selectionEnd: to, selectionDirection: direction } = focused ?? {};
  const opened = [...before.querySelectorAll("details")].map((each) => each.open);
  keepInput(before, after);
  before.replaceWith(after);
  after.querySelectorAll("details").forEach((each, place) => { each.open = opened[place] ?? each.open; });
  target?.focus({ preventScroll: true });
  if (target && Number.isInteger(from)) target.setSelectionRange(from, to, direction);
}

// A form that the user is correcting is not replaced, but it needs the current CSRF token.
function refreshHidden(before, after) {
  for (const hidden of after.querySelectorAll("input[type=hidden]")) {
    const same = sameControl(hidden, before);
    if (same) same.value = hidden.value;
  }
}

function update(name, html) {
  const before = document.getElementById(name);
  const after = parse(html);
  if (!before) return after;
  if (before.dataset.digest === "kept") refreshHidden(before, after);
  if (["kept", after.dataset.digest].includes(before.dataset.digest)) return before;
  announceStatus(before, after);
  replace(before, after);
  return after;
}

// Screen readers announce a new status, and nothing else: more would be noise.
function announceStatus(before, after) {
  if (after.id !== "summary") return;
  const [was, is] = [before, after].map((each) => each.querySelector(".status")?.textContent);
  if (was !== is && is) announce(`The task is ${is}.`);
}

function reorder(list, names, elements) {
  const wanted = names.map((name) => elements.get(name) ?? document.getElementById(name)).filter(Boolean);
  const kept = new Set(wanted);
  for (const child of [...list.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((element, place) => {
    if (list.children[place] !== element) {
      if (!element.isConnected) element.classList.add("fresh");
      list.insertBefore(element, list.children[place] ?? null);
    }
  });
}

function show({ fragments, lists }) {
  const elements = new Map(Object.entries(fragments).map(([name, html]) => [name, update(name, html)]));
  for (const [name, names] of Object.entries(lists)) reorder(document.getElementById(name), names, elements);
}

// An EventSource does not report why the server refused it, so request the same path to get the status code.
async function probeStatus(path) {
  const request = new AbortController();
  try {
    const answer = await fetch(path, { redirect: "manual", signal: request.signal });
    return answer.type === "opaqueredirect" ? 401 : answer.status;
  } catch {
    return 0; // the server is not reachable
  } finally {
    request.abort();
  }
}

// A browser reconnects by itself when a connection breaks, but not when the server refuses the connection, for
// example because it is starting or too many pages are open. In that case, reconnect here, with exponential backoff.
const MIN_RETRY_MS = 3000;
const MAX_RETRY_MS = 30000;

// A browser allows six connections per server for all its tabs, so hidden tabs close theirs.
export function follow(path, changed) {
  let source = null;
  let retry = null;
  let pause = MIN_RETRY_MS;
  let isEnded = false;

  function start() {
    if (isEnded || document.hidden || source) return;
    const current = source = new EventSource(path);
    current.onopen = () => setState("live");
    current.onerror = () => {
      setState("lost");
      if (current.readyState === EventSource.CLOSED) refused(current);
    };
    current.addEventListener("update", (event) => {
      pause = MIN_RETRY_MS;
      setState("live");
      show(JSON.parse(event.data));
      changed(document);
    });
    current.addEventListener("end", end);
  }

  function stop() {
    clearTimeout(retry);
    source?.close();
    source = null;
  }

  function end() {
    isEnded = true;
    stop();
    setState("ended");
    announce("This page is no longer available.");
  }

  async function refused(current) {
    const status = await probeStatus(path);
    if (current !== source) return; // the tab was hidden meanwhile
    if (status === 404) return end();
    if (status === 401) return location.reload();
    retry = setTimeout(() => { stop(); start(); }, pause);
    pause = Math.min(2 * pause, MAX_RETRY_MS);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return start();
    stop();
    if (!isEnded) setState("waiting");
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  start();
}
