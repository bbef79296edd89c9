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

// Who was on a link or a button stays on it, and a table that was opened stays open.
function replace(before, after) {
  const places = "a, button, input, select, textarea, summary, [tabindex]";
  const held = before.contains(document.activeElement)
    ? [...before.querySelectorAll(places)].indexOf(document.activeElement) : -1;
  const opened = [...before.querySelectorAll("details")].map((each) => each.open);
  before.replaceWith(after);
  after.querySelectorAll("details").forEach((each, place) => { each.open = opened[place] ?? each.open; });
  if (held >= 0) after.querySelectorAll(places)[held]?.focus({ preventScroll: true });
}

function update(name, html) {
  const before = document.getElementById(name);
  const after = parsed(html);
  if (!before) return after;
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

// A browser comes back by itself when a connection breaks, and not when it is refused, as by a server that is
// just starting or full.
const COME_BACK = 3000;

export function follow(path, changed) {
  const source = new EventSource(path);
  source.onopen = () => stand("live");
  source.onerror = () => {
    stand("lost");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(path, changed), COME_BACK);
  };
  source.addEventListener("screen", (event) => {
    stand("live");
    const { pieces, lists } = JSON.parse(event.data);
    const elements = new Map(Object.entries(pieces).map(([name, html]) => [name, update(name, html)]));
    for (const [name, names] of Object.entries(lists)) {
      arrange(document.getElementById(name), names, elements);
    }
    changed(document);
  });
  source.addEventListener("over", () => {
    source.close();
    stand("over");
  });
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}
