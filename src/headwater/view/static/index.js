// The list of views, live.

import { arrange, byId, h, s, text } from "./dom.js";
import { open } from "./feed.js";
import { ago, number, short } from "./format.js";

const SAMPLES = 60;
const WIDTH = 120;
const HEIGHT = 28;

const rows = new Map(); // view name -> its row on the page and what is drawn in it
let status = null;

function makeRow(view) {
  const link = h("a", { href: `/live/${encodeURIComponent(view.name)}` }, view.name);
  const parts = {
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
    h("td", { class: "chips" }, ...keys),
    parts.count,
    parts.last,
    parts.rate,
    h("td", { class: "spark-cell" }, spark),
  );
  return { element, parts, samples: new Array(SAMPLES).fill(0), seen: view.changes };
}

function draw(row, view) {
  const { parts, samples } = row;
  if (text(parts.count, number(view.rows))) parts.count.classList.toggle("zero", view.rows === 0);
  text(parts.last, ago(view.changed_at));
  text(parts.rate, short(samples.at(-1)));
  const most = Math.max(1, ...samples);
  const step = WIDTH / (SAMPLES - 1);
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
  text(byId("problem"), status.problem);
  byId("problem").hidden = !status.problem;
  byId("empty").hidden = views.length > 0;
}

function sample() {
  for (const view of status?.views ?? []) {
    const row = rows.get(view.name);
    if (!row) continue;
    row.samples.push(Math.max(0, view.changes - row.seen));
    row.samples.shift();
    row.seen = view.changes;
  }
  render();
}

open("/activity", {
  activity(data) {
    status = data;
    render();
  },
});
setInterval(sample, 1000);
