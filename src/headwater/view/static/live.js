// One view, live: its rows in memory, drawn at most ten times a second.

import { Chart } from "./chart.js";
import { byId, h, text } from "./dom.js";
import { open } from "./feed.js";
import { ago, cell, chooseZone, isMeasure, isWindow, kind, localZone, moment, number, numeric, short, zone } from "./format.js";
import { follow } from "./health.js";
import { RowTable } from "./rows.js";

const ROWS_MAX = 20000;
const COLUMN_SAMPLE = 50;
const RATE_SECONDS = 5;
const FRAME_MS = 100;
const NOTHING = "0001-"; // what a view is complete up to that has heard nothing yet begins so

const name = decodeURIComponent(location.pathname.replace(/^\/live\//, ""));
const rows = new Map(); // key -> {key, row, at, until, provisional, label, search}, oldest change first
const counts = []; // changes in each of the last seconds
const table = new RowTable(byId("head"), byId("body"), () => schedule());
const chart = new Chart(byId("chart"), byId("legend"));
let key = [];
let total = 0; // rows on the server, also those that this page was not sent
let arrived = 0;
let last = null;
let complete = null; // up to when, as text of the same form as each row's `until`; null where the view does not say
let scheduled = false;
let drawnAt = 0;
let measures = [];
let types = {}; // of the columns, in Spark's notation, where the view says them

function put({ key: id, row, at, until }, fresh) {
  rows.delete(id);
  if (row === null) return;
  const label = key.map((column) => cell(row[column], "id")).join(" · ") || id;
  rows.set(id, { key: id, row, at, until, label, fresh, search: Object.entries(row).map(([column, value]) => cell(value, kindOf(column))).join(" ").toLowerCase() });
  if (rows.size > ROWS_MAX) rows.delete(rows.keys().next().value);
}

const kindOf = (column) => kind(column, key, types[column]);

function columnsOf(entries) {
  const found = new Set(key);
  for (const { row } of entries.slice(-COLUMN_SAMPLE)) Object.keys(row).forEach((column) => found.add(column));
  return [...found];
}

function chooseMeasures(entries, columns) {
  const sample = entries.slice(-COLUMN_SAMPLE);
  const found = columns.filter(
    (column) => isMeasure(kindOf(column)) && sample.some(({ row }) => numeric(row[column]) !== null),
  );
  if (found.join("\n") === measures.join("\n")) return;
  measures = found;
  const select = byId("measure");
  const was = select.value;
  select.replaceChildren(...found.map((column) => h("option", { value: column }, column)));
  if (found.includes(was)) select.value = was;
  select.closest("label").hidden = found.length < 2;
}

function drawComplete() {
  const element = byId("complete");
  element.hidden = complete === null;
  if (complete === null) return;
  const nothing = complete.startsWith(NOTHING);
  text(element, nothing ? "Nothing complete yet" : `Complete up to ${moment(complete)}, ${ago(Date.parse(complete))}`);
}

function drawFigures(shown, matching) {
  const unseen = Math.max(0, total - rows.size);
  text(byId("count"), number(total));
  text(byId("last"), ago(last));
  text(byId("rate"), short(counts.reduce((sum, value) => sum + value, 0) / Math.max(1, counts.length)));
  const filtered = byId("filter").value.trim() !== "";
  const empty = byId("empty");
  empty.hidden = shown > 0;
  text(empty, rows.size && filtered ? "No row matches the filter." : "Waiting for the first row…");
  const note = byId("note");
  note.hidden = shown >= matching && !unseen;
  text(note, `${number(shown)} of ${number(matching)} rows shown${unseen ? `; ${number(unseen)} older rows are not on this page` : ""}`);
}

function draw() {
  scheduled = false;
  drawnAt = performance.now();
  const entries = [...rows.values()];
  for (const entry of entries) entry.provisional = complete !== null && entry.until !== null && entry.until > complete;
  const columns = columnsOf(entries);
  const windowColumn = key.find((column) => entries.some((entry) => isWindow(entry.row[column])));
  chooseMeasures(entries, columns);
  const kinds = new Map(columns.map((column) => [column, kindOf(column)]));
  if (entries.length) table.setColumns(columns, kinds, measures, windowColumn);
  const wanted = byId("filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const matching = wanted.length ? entries.filter((entry) => wanted.every((word) => entry.search.includes(word))) : entries;
  const shown = table.draw(matching);
  const measure = byId("measure").value;
  byId("chart-card").hidden = !measure || !matching.length;
  if (measure && matching.length) {
    text(byId("chart-title"), windowColumn ? `${measure} over time` : `${measure} by ${key.join(", ")}`);
    chart.draw(matching, key, measure);
  }
  drawFigures(shown, matching.length);
  drawComplete();
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => requestAnimationFrame(draw), Math.max(0, drawnAt + FRAME_MS - performance.now()));
}

function onSnapshot(data) {
  rows.clear();
  key = data.key;
  types = data.columns;
  complete = data.complete;
  total = data.total;
  byId("key").replaceChildren("Key ", ...key.map((column) => h("span", { class: "chip" }, column)));
  for (const change of data.rows.reverse()) put(change, false);
  last = data.rows.at(-1)?.at ?? null;
  schedule();
}

function onChanges({ changes, total: now }) {
  total = now;
  for (const change of changes) put(change, true);
  if (changes.length) last = changes.at(-1).at;
  arrived += changes.length;
  schedule();
}

function onComplete(data) {
  complete = data.complete;
  schedule();
}

const other = zone === localZone ? "UTC" : localZone;
text(byId("zone"), `Times in ${zone}`);
byId("zone").title = other === zone ? "" : `Show times in ${other}`;
byId("zone").disabled = other === zone;
byId("zone").addEventListener("click", () => {
  chooseZone(other === "UTC" ? "UTC" : "");
  location.reload();
});
document.title = `${name} · Headwater`;
text(byId("name"), name);
byId("filter").addEventListener("input", schedule);
byId("measure").addEventListener("change", schedule);
follow();
open(`/views/${encodeURIComponent(name)}/changes`, { snapshot: onSnapshot, changes: onChanges, complete: onComplete });
setInterval(() => {
  counts.push(arrived);
  if (counts.length > RATE_SECONDS) counts.shift();
  arrived = 0;
  schedule();
}, 1000);
