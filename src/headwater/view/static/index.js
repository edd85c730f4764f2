// The list of views, live.

import { arrange, byId, h, s, text } from "./dom.js";
import { open } from "./feed.js";
import { ago, number, short } from "./format.js";
import { follow, isBad, part } from "./health.js";

const RATE_SECONDS = 5;
const WIDTH = 120;
const HEIGHT = 28;

const rows = new Map(); // view name -> its row on the page and what is drawn in it
let status = null;
let heardAt = 0; // when the console has said that

function makeRow(view) {
  const link = h("a", { href: `/live/${encodeURIComponent(view.name)}` }, view.name);
  const parts = {
    state: h("td", { class: "state", "data-testid": "state" }),
    lag: h("td", { class: "number quiet", "data-testid": "lag" }),
    left: h("td", { class: "quiet", "data-testid": "left-out" }),
    count: h("td", { class: "number", "data-testid": "row-count" }),
    last: h("td", { class: "number quiet" }),
    rate: h("td", { class: "number" }),
    line: s("polyline", { class: "spark-line" }),
    area: s("polygon", { class: "spark-area" }),
  };
  const spark = s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, parts.area, parts.line);
  const keys = view.key.map((column) => h("span", { class: "chip" }, column));
  const element = h(
    "tr",
    { "data-testid": `view-${view.name}` },
    h("th", { scope: "row" }, link),
    parts.state,
    h("td", { class: "chips" }, ...keys),
    parts.count,
    parts.lag,
    parts.left,
    parts.last,
    parts.rate,
    h("td", { class: "spark-cell" }, spark),
  );
  return { element, parts };
}

/** The changes of each of the last sixty seconds: as the console has counted them, and none since. */
function lastMinute(view) {
  const since = Math.floor((performance.now() - heardAt) / 1000);
  return [...view.minute, ...new Array(Math.min(since, view.minute.length)).fill(0)].slice(-view.minute.length);
}

const LEFT_OUT = ["late", "invalid", "failed"];

function leftOut(counts) {
  if (!counts) return "–";
  return LEFT_OUT.filter((why) => counts[why]).map((why) => `${number(counts[why])} ${why}`).join(", ") || "none";
}

function drawState(row, view) {
  const found = part("view", view.name);
  const { state, lag } = row.parts;
  text(state, found?.state ?? "–");
  state.classList.toggle("bad", isBad(found));
  state.title = found?.error ?? "";
  text(lag, found?.lag_records === null || found?.lag_records === undefined ? "–" : number(found.lag_records));
}

function draw(row, view) {
  const { parts } = row;
  const samples = lastMinute(view);
  drawState(row, view);
  const left = part("view", view.name)?.left_out ?? view.left_out; // real-time views say it with their state
  if (text(parts.left, leftOut(left))) parts.left.classList.toggle("bad", Boolean(left?.failed));
  if (text(parts.count, number(view.rows))) parts.count.classList.toggle("zero", view.rows === 0);
  text(parts.last, ago(view.changed_at));
  text(parts.rate, short(samples.slice(-RATE_SECONDS).reduce((sum, value) => sum + value, 0) / RATE_SECONDS));
  const most = Math.max(1, ...samples);
  const step = WIDTH / (samples.length - 1);
  const points = samples.map((value, i) => `${(i * step).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`);
  parts.line.setAttribute("points", points.join(" "));
  parts.area.setAttribute("points", `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
}

/** All offsets of a position added up: how many records of the log the tables contain. */
function applied(position) {
  return [...position.matchAll(/[:,]\d+=(\d+)/g)].reduce((sum, found) => sum + Number(found[1]), 0);
}

function render() {
  if (!status) return;
  const { views } = status;
  for (const view of views) {
    if (!rows.has(view.name)) rows.set(view.name, makeRow(view));
    draw(rows.get(view.name), view);
  }
  arrange(byId("views"), views.map((view) => rows.get(view.name).element));
  const total = views.reduce((sum, view) => sum + view.rows, 0);
  text(byId("app"), status.app);
  text(byId("summary"), `${number(views.length)} ${views.length === 1 ? "view" : "views"}, ${number(total)} rows, updated as records commit`);
  text(byId("log"), status.log);
  text(byId("position"), `${number(views.reduce((sum, view) => sum + applied(view.position), 0))} records applied`);
  text(byId("changes"), number(views.reduce((sum, view) => sum + view.changes, 0)));
  byId("empty").hidden = views.length > 0;
}

open("/activity", {
  activity(data) {
    status = data;
    heardAt = performance.now();
    render();
  },
});
setInterval(render, 1000);
follow(render);
