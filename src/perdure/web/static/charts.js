// Draws each chart from the table below it. Screen readers read the table.
import { clock } from "./times.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 180;
const EDGE = { top: 10, right: 8, bottom: 22, left: 34 };

function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

function read(table) {
  const series = [...table.querySelectorAll("thead [data-series]")].map((head) => ({
    name: head.dataset.series, label: head.textContent, values: [],
  }));
  const times = [];
  for (const row of table.tBodies[0].rows) {
    times.push(new Date(row.querySelector("time").dateTime));
    [...row.querySelectorAll("td")].forEach((cell, place) => {
      series[place].values.push(cell.textContent === "" ? null : Number(cell.textContent));
    });
  }
  return { times, series };
}

// Return the smallest scale with round steps that contains the largest value.
function niceScale(max) {
  if (max <= 4) return { top: Math.max(2, max), step: 1 };
  const rough = max / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  return { top: Math.ceil(max / step) * step, step };
}

function frame(plot, data, max) {
  const width = Math.max(240, plot.clientWidth);
  const { top, step } = niceScale(max);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT });
  const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
  const y = (value) => EDGE.top + inner.height * (1 - value / top);
  const x = (place) => EDGE.left + (inner.width * place) / data.times.length;
  for (let value = 0; value <= top; value += step) {
    shape("line", { class: value ? "grid" : "axis", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }, svg);
    const label = shape("text", { class: "tick", x: EDGE.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, svg);
    label.textContent = value >= 10000 ? `${value / 1000}k` : value;
  }
  const every = Math.ceil(data.times.length / Math.max(2, Math.floor(width / 110)));
  data.times.forEach((time, place) => {
    if (place % every || x(place) > width - 50) return;
    const label = shape("text", { class: "tick", x: x(place), y: HEIGHT - 6 }, svg);
    label.textContent = clock(time).slice(0, data.times[1] - data.times[0] < 60000 ? 8 : 5);
  });
  return { svg, x, y, slot: inner.width / data.times.length };
}

function columns(plot, data) {
  const sums = data.times.map((_, place) => data.series.reduce((sum, each) => sum + each.values[place], 0));
  const { svg, x, y, slot } = frame(plot, data, Math.max(...sums));
  data.times.forEach((time, place) => {
    let below = 0;
    const group = shape("g", { class: "slot" }, svg);
    shape("rect", { class: "ground", x: x(place), y: EDGE.top, width: slot, height: HEIGHT - EDGE.top - EDGE.bottom }, group);
    for (const each of data.series) {
      const value = each.values[place];
      if (!value) continue;
      const gap = Math.min(2, slot / 5);
      shape("rect", {
        class: `column ${each.name}`, x: x(place) + gap / 2, width: slot - gap,
        y: y(below + value), height: Math.max(1, y(below) - y(below + value)),
      }, group);
      below += value;
    }
    shape("title", {}, group).textContent = tooltip(time, data, place);
  });
  return svg;
}

function lines(plot, data) {
  const known = data.series.flatMap((each) => each.values).filter((value) => value !== null);
  const { svg, x, y, slot } = frame(plot, data, Math.max(0, ...known));
  for (const each of data.series) {
    const points = each.values.map((value, place) => value === null ? null : [x(place) + slot / 2, y(value)]);
    const path = points.map((point, place) => point && `${points[place - 1] ? "L" : "M"}${point}`).filter(Boolean).join("");
    shape("path", { class: `line ${each.name}`, d: path || "M0 0" }, svg);
    const last = points.filter(Boolean).at(-1);
    if (last) shape("circle", { class: `dot ${each.name}`, cx: last[0], cy: last[1], r: 3 }, svg);
  }
  data.times.forEach((time, place) => {
    const group = shape("g", { class: "slot" }, svg);
    shape("rect", { class: "ground", x: x(place), y: EDGE.top, width: slot, height: HEIGHT - EDGE.top - EDGE.bottom }, group);
    shape("title", {}, group).textContent = tooltip(time, data, place);
  });
  return svg;
}

function tooltip(time, data, place) {
  const values = data.series.map((each) => `${each.label} ${each.values[place] ?? "unknown"}`);
  return `${clock(time)}\n${values.join("\n")}`;
}

function legend(data) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const each of data.series) {
    const entry = document.createElement("li");
    entry.className = each.name;
    entry.textContent = each.label;
    list.append(entry);
  }
  return list;
}

const KINDS = { columns, lines };

export function drawCharts(within) {
  for (const figure of within.querySelectorAll("[data-chart]")) {
    const plot = figure.querySelector(".plot");
    const data = read(figure.querySelector("table"));
    plot.replaceChildren(KINDS[figure.dataset.chart](plot, data), legend(data));
  }
}
