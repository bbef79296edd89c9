// Formats the times of a page relative to now, in the time zone of the browser. The server writes full UTC times.
const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];

export function span(seconds) {
  for (const [name, length, smaller, unit] of UNITS) {
    if (seconds >= length) {
      const rest = Math.floor((seconds % length) / unit);
      return `${Math.floor(seconds / length)} ${name}` + (rest && seconds < 10 * length ? ` ${rest} ${smaller}` : "");
    }
  }
  return `${Math.floor(seconds)} s`;
}

function distance(at, now) {
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

const two = (number) => String(number).padStart(2, "0");
export const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
// The time of day, with the date unless it is today.
const moment = (at, now) => `${day(at) === day(now) ? "" : day(at) + " "}${clock(at)}`;

const FORMATS = {
  age: distance,
  since: (at, now) => span(Math.max(0, (now - at) / 1000)),
  clock: (at) => clock(at),
  moment,
  both: (at, now) => `${moment(at, now)}, ${distance(at, now)}`,
  full: (at) => `${day(at)} ${clock(at)}`,
};

export function updateTimes(within) {
  const now = new Date();
  for (const element of within.querySelectorAll("time[data-mode]")) {
    const text = FORMATS[element.dataset.mode](new Date(element.dateTime), now);
    if (element.textContent !== text) element.textContent = text;
  }
}
