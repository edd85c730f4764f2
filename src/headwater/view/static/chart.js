// One chart, drawn by hand in SVG: lines over time for views with a window, bars for all others.

import { h, s } from "./dom.js";
import { isWindow, number, numeric, short, tick, time, zoneOffset } from "./format.js";

const SERIES_MAX = 8;
const WINDOWS_MAX = 60;
const BARS_MAX = 12;
const HEIGHT = 280;
const PAD = { top: 14, right: 34, bottom: 30, left: 58 };
const BAR = 26;
const STEPS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800].map((seconds) => seconds * 1000);

/** Round numbers from `low` to beyond `high`, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function timeTicks(from, to, count) {
  const step = STEPS.find((candidate) => (to - from) / candidate <= count) ?? STEPS.at(-1);
  const shift = zoneOffset(from);
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return { step, found };
}

/** The series of a windowed view: name, points in time order, the greatest first. */
function series(entries, key, windowColumn, measure) {
  const others = key.filter((column) => column !== windowColumn);
  const starts = [...new Set(entries.map((entry) => entry.start))].sort((a, b) => a - b).slice(-WINDOWS_MAX);
  const groups = new Map();
  for (const { row, start, provisional } of entries) {
    const value = numeric(row[measure]);
    if (start < starts[0] || value === null) continue;
    const name = others.map((column) => String(row[column] ?? "–")).join(" · ") || measure;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push({ x: start, y: value, provisional });
  }
  const all = [...groups].map(([name, points]) => {
    points.sort((a, b) => a.x - b.x);
    return { name, points, sum: points.reduce((sum, point) => sum + Math.abs(point.y), 0) };
  });
  all.sort((a, b) => b.sum - a.sum || (a.name < b.name ? -1 : 1));
  return { all, starts };
}

/** A line cut where it becomes provisional: the way to a provisional point is so too. */
function stretches(points) {
  const found = [{ provisional: points[0].provisional, points: [points[0]] }];
  points.slice(1).forEach((point, i) => {
    if (point.provisional !== found.at(-1).provisional) found.push({ provisional: point.provisional, points: [points[i]] });
    found.at(-1).points.push(point);
  });
  return found;
}

const figure = (point, format) => h("b", { class: point.provisional ? "provisional" : null }, format(point.y));

export class Chart {
  constructor(element, legend) {
    this.element = element;
    this.legend = legend;
    this.colors = new Map();
    this.hover = null;
    this.last = null;
    new ResizeObserver(() => this.last && this.draw(...this.last)).observe(element);
  }

  draw(entries, key, measure) {
    this.last = [entries, key, measure];
    const windowColumn = key.find((column) => entries.some((entry) => isWindow(entry.row[column])));
    if (windowColumn) this.lines(entries, key, windowColumn, measure);
    else this.bars(entries, measure);
  }

  lines(entries, key, windowColumn, measure) {
    const timed = entries
      .filter((entry) => isWindow(entry.row[windowColumn]))
      .map((entry) => ({ row: entry.row, provisional: entry.provisional, start: Date.parse(entry.row[windowColumn].start) }));
    const { all, starts } = series(timed, key, windowColumn, measure);
    const shown = all.slice(0, SERIES_MAX);
    this.assignColors(shown);
    const width = Math.max(280, this.element.clientWidth);
    const values = shown.flatMap((line) => line.points.map((point) => point.y));
    const yTicks = ticks(Math.min(0, ...values), Math.max(...values, 0) || 1, 4);
    const span = starts.at(-1) - starts[0] || 1;
    const inner = { width: width - PAD.left - PAD.right, height: HEIGHT - PAD.top - PAD.bottom };
    const x = (at) => PAD.left + (starts.length > 1 ? ((at - starts[0]) / span) * inner.width : inner.width / 2);
    const y = (value) => PAD.top + (1 - (value - yTicks[0]) / (yTicks.at(-1) - yTicks[0])) * inner.height;
    const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" });
    svg.setAttribute("aria-label", `${measure} over time, ${shown.length} of ${all.length} series; the table below has the numbers`);
    for (const value of yTicks) {
      svg.append(s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }));
      svg.append(s("text", { class: "tick", x: PAD.left - 10, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    const axis = starts.length > 1 ? timeTicks(starts[0], starts.at(-1), Math.floor(inner.width / 80)) : { step: 60_000, found: starts };
    for (const at of axis.found) {
      svg.append(s("text", { class: "tick", x: x(at), y: HEIGHT - 8, "text-anchor": "middle" }, tick(at, axis.step)));
    }
    for (const line of [...shown].reverse()) svg.append(this.line(line, x, y));
    this.element.replaceChildren(svg);
    this.follow(svg, { shown, starts, x, y, width });
    this.drawLegend(shown, all.length);
  }

  line({ points, color }, x, y) {
    const place = (point) => `${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`;
    const end = points.at(-1);
    const paths = stretches(points).map(({ provisional, points: stretch }) =>
      s("path", { class: provisional ? "provisional" : null, d: `M${stretch.map(place).join("L")}` }),
    );
    const dot = s("circle", { class: end.provisional ? "provisional" : null, cx: x(end.x), cy: y(end.y), r: 3.5 });
    return s("g", { class: `series c${color}` }, ...paths, dot);
  }

  /** A line under the pointer with the values of that window, kept while the data moves on. */
  follow(svg, plot) {
    const mark = s("g", { class: "cursor" });
    svg.append(mark);
    const tip = h("div", { class: "tip", hidden: "" });
    this.element.append(tip);
    const show = (left) => {
      const start = plot.starts.reduce((best, at) => (Math.abs(plot.x(at) - left) < Math.abs(plot.x(best) - left) ? at : best));
      const at = plot.x(start);
      mark.replaceChildren(s("line", { x1: at, x2: at, y1: PAD.top, y2: HEIGHT - PAD.bottom }));
      const lines = plot.shown.flatMap((line) => {
        const point = line.points.find((candidate) => candidate.x === start);
        return point ? [h("li", { class: `c${line.color}` }, h("span", {}, line.name), figure(point, number))] : [];
      });
      tip.replaceChildren(h("strong", {}, time(start)), h("ul", {}, ...lines));
      tip.hidden = false;
      const flip = at > plot.width / 2;
      tip.style.left = flip ? "auto" : `${at + 12}px`;
      tip.style.right = flip ? `${plot.width - at + 12}px` : "auto";
    };
    svg.addEventListener("pointermove", (event) => {
      this.hover = event.clientX - svg.getBoundingClientRect().left;
      show(this.hover);
    });
    svg.addEventListener("pointerleave", () => {
      this.hover = null;
      tip.hidden = true;
      mark.replaceChildren();
    });
    if (this.hover !== null && plot.starts.length) show(this.hover);
  }

  bars(entries, measure) {
    const all = entries.map((entry) => ({ name: entry.label, value: numeric(entry.row[measure]) ?? 0, provisional: entry.provisional }));
    all.sort((a, b) => b.value - a.value || (a.name < b.name ? -1 : 1));
    const shown = all.slice(0, BARS_MAX);
    const width = Math.max(280, this.element.clientWidth);
    const left = Math.min(200, width * 0.32);
    const letters = Math.floor((left - 14) / 7.5);
    const most = Math.max(...shown.map((bar) => Math.abs(bar.value)), 0) || 1;
    const height = shown.length * BAR + 8;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
    svg.setAttribute("aria-label", `${measure} by key, the greatest ${shown.length} of ${all.length}`);
    shown.forEach((bar, i) => {
      const top = i * BAR + 4;
      const length = Math.max(1, (Math.abs(bar.value) / most) * (width - left - 84));
      const name = bar.name.length > letters ? `${bar.name.slice(0, letters - 1)}…` : bar.name;
      svg.append(
        s("text", { class: "name", x: left - 10, y: top + 16, "text-anchor": "end" }, name),
        s("rect", { class: bar.provisional ? "bar-rect provisional" : "bar-rect", x: left, y: top + 3, width: length, height: BAR - 9, rx: 3 }),
        s("text", { class: "tick", x: left + length + 8, y: top + 16 }, short(bar.value)),
      );
    });
    this.element.replaceChildren(svg);
    this.legend.replaceChildren(...(all.length > shown.length ? [h("li", { class: "rest" }, `and ${number(all.length - shown.length)} more`)] : []));
  }

  drawLegend(shown, total) {
    const items = shown.map((line) =>
      h("li", { class: `c${line.color}` }, h("span", {}, line.name), figure(line.points.at(-1), short)),
    );
    if (total > shown.length) items.push(h("li", { class: "rest" }, `and ${number(total - shown.length)} more`));
    this.legend.replaceChildren(...items);
  }

  /** A series keeps its colour as long as it is shown, whatever its rank. */
  assignColors(shown) {
    const names = new Set(shown.map((line) => line.name));
    for (const name of this.colors.keys()) if (!names.has(name)) this.colors.delete(name);
    const free = Array.from({ length: SERIES_MAX }, (_, i) => i).filter((i) => ![...this.colors.values()].includes(i));
    for (const line of shown) {
      if (!this.colors.has(line.name)) this.colors.set(line.name, free.shift());
      line.color = this.colors.get(line.name);
    }
  }
}
