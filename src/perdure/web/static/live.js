// Keeps the pieces of a page as the server has them: each is replaced when, and only when, it differs.
const WORDS = { waiting: "connecting", live: "live", lost: "reconnecting", over: "gone" };

function stand(state) {
  const element = document.getElementById("live");
  if (!element || element.dataset.state === state) return;
  element.dataset.state = state;
  element.querySelector(".word").textContent = WORDS[state];
}

function say(words) {
  document.getElementById("news").textContent = words;
}

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

const CONTROLS = "input, select, textarea";
const PLACES = `a, button, summary, [tabindex], ${CONTROLS}`;

const isTick = (control) => ["checkbox", "radio"].includes(control.type);

function sameControl(control, within) {
  return [...within.querySelectorAll(CONTROLS)].find((each) =>
    each.name === control.name && each.type === control.type && (!isTick(control) || each.value === control.value));
}

function isChanged(control) {
  if (isTick(control)) return control.checked !== control.defaultChecked;
  if (!control.options) return control.value !== control.defaultValue;
  const first = [...control.options].find((each) => each.defaultSelected) ?? control.options[0];
  return control.value !== first?.value;
}

// What somebody has filled in is theirs, whoever drew the form.
function carry(before, after) {
  for (const control of before.querySelectorAll(CONTROLS)) {
    const same = isChanged(control) && sameControl(control, after);
    if (!same) continue;
    if (isTick(control)) same.checked = control.checked;
    else same.value = control.value;
  }
}

function samePlace(place, before, after) {
  if (place.matches(CONTROLS)) return sameControl(place, after);
  return after.querySelectorAll(PLACES)[[...before.querySelectorAll(PLACES)].indexOf(place)];
}

// Who was on a link, a button or a word stays on it, and a table that was opened stays open.
function replace(before, after) {
  const held = before.contains(document.activeElement) ? document.activeElement : null;
  const place = held && samePlace(held, before, after);
  const { selectionStart: from, selectionEnd: to, selectionDirection: way } = held ?? {};
  const opened = [...before.querySelectorAll("details")].map((each) => each.open);
  carry(before, after);
  before.replaceWith(after);
  after.querySelectorAll("details").forEach((each, place) => { each.open = opened[place] ?? each.open; });
  place?.focus({ preventScroll: true });
  if (place && Number.isInteger(from)) place.setSelectionRange(from, to, way);
}

// A form that is being mended stays as it is, but is sent with the key of the server that is there now.
function renew(before, after) {
  for (const hidden of after.querySelectorAll("input[type=hidden]")) {
    const same = sameControl(hidden, before);
    if (same) same.value = hidden.value;
  }
}

function update(name, html) {
  const before = document.getElementById(name);
  const after = parsed(html);
  if (!before) return after;
  if (before.dataset.digest === "kept") renew(before, after);
  if (["kept", after.dataset.digest].includes(before.dataset.digest)) return before;
  announce(before, after);
  replace(before, after);
  return after;
}

// Only what a person waits for is said aloud: that a task has another status.
function announce(before, after) {
  if (after.id !== "summary") return;
  const [was, is] = [before, after].map((each) => each.querySelector(".status")?.textContent);
  if (was !== is && is) say(`The task is ${is}.`);
}

function arrange(list, names, pieces) {
  const wanted = names.map((name) => pieces.get(name) ?? document.getElementById(name)).filter(Boolean);
  const kept = new Set(wanted);
  for (const child of [...list.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((element, place) => {
    if (list.children[place] !== element) {
      if (!element.isConnected) element.classList.add("fresh");
      list.insertBefore(element, list.children[place] ?? null);
    }
  });
}

function show({ pieces, lists }) {
  const elements = new Map(Object.entries(pieces).map(([name, html]) => [name, update(name, html)]));
  for (const [name, names] of Object.entries(lists)) arrange(document.getElementById(name), names, elements);
}

// Why it was refused: a source does not tell. What is answered after all is not read.
async function answerOf(path) {
  const asking = new AbortController();
  try {
    const answer = await fetch(path, { redirect: "manual", signal: asking.signal });
    return answer.type === "opaqueredirect" ? 401 : answer.status;
  } catch {
    return 0; // nobody is there
  } finally {
    asking.abort();
  }
}

// A browser comes back by itself when a connection breaks, and not when it is refused, as by a server that is
// just starting or full: then it is asked again, ever less often.
const SOONEST = 3000;
const LATEST = 30000;

// A browser has six connections to a server, for all its tabs: those that nobody sees need none.
export function follow(path, changed) {
  let source = null;
  let again = null;
  let pause = SOONEST;
  let isOver = false;

  function start() {
    if (isOver || document.hidden || source) return;
    const mine = source = new EventSource(path);
    mine.onopen = () => stand("live");
    mine.onerror = () => {
      stand("lost");
      if (mine.readyState === EventSource.CLOSED) refused(mine);
    };
    mine.addEventListener("screen", (event) => {
      pause = SOONEST;
      stand("live");
      show(JSON.parse(event.data));
      changed(document);
    });
    mine.addEventListener("over", end);
  }

  function stop() {
    clearTimeout(again);
    source?.close();
    source = null;
  }

  function end() {
    isOver = true;
    stop();
    stand("over");
    say("What this page shows is gone.");
  }

  async function refused(mine) {
    const status = await answerOf(path);
    if (mine !== source) return; // it is not seen any more
    if (status === 404) return end();
    if (status === 401) return location.reload();
    again = setTimeout(() => { stop(); start(); }, pause);
    pause = Math.min(2 * pause, LATEST);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return start();
    stop();
    if (!isOver) stand("waiting");
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  start();
}
