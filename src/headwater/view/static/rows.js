// The table of rows: keyed elements that stay in place, changed cells that flash.

import { arrange, h, text } from "./dom.js";
import { ago, cell, isTimestamp, isWindow, numeric } from "./format.js";

const SHOWN_MAX = 200;
const CHANGED = "changed";
const calm = matchMedia("(prefers-reduced-motion: reduce)");

function order(value) {
  if (isWindow(value)) return Date.parse(value.start);
  return numeric(value) ?? (value === null || value === undefined ? "" : String(value));
}

function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function flash(element) {
  if (calm.matches || !element.animate) return;
  const color = getComputedStyle(element).getPropertyValue("--flash");
  element.animate([{ backgroundColor: color }, { backgroundColor: "transparent" }], { duration: 1200, easing: "ease-out" });
}

/** Draws rows into `head` and `body`; `onSort` is called after the reader has chosen another order. */
export class RowTable {
  constructor(head, body, onSort) {
    this.head = head;
    this.body = body;
    this.onSort = onSort;
    this.columns = [];
    this.elements = new Map();
    this.numbers = new Set([CHANGED]);
    this.kinds = new Map();
    this.sort = { column: CHANGED, descending: true };
  }

  /** The columns to show with their kinds, which hold numbers, and by which the newest rows come first. */
  setColumns(columns, kinds, numbers, windowColumn) {
    if (columns.join("\n") === this.columns.join("\n")) return;
    this.numbers = new Set([...numbers, CHANGED]);
    this.kinds = kinds;
    if (!this.columns.length && windowColumn) this.sort = { column: windowColumn, descending: true };
    this.columns = columns;
    this.elements.clear();
    this.body.replaceChildren();
    this.drawHead();
  }

  drawHead() {
    const heads = [...this.columns, CHANGED].map((column) => {
      const sorted = this.sort.column === column;
      const direction = sorted ? (this.sort.descending ? "descending" : "ascending") : null;
      const button = h("button", { type: "button" }, column === CHANGED ? "last change" : column);
      button.addEventListener("click", () => {
        this.sort = { column, descending: sorted ? !this.sort.descending : true };
        this.drawHead();
        this.onSort();
        this.head.querySelector(`th[aria-sort] button`)?.focus();
      });
      return h("th", { scope: "col", "aria-sort": direction, class: this.numbers.has(column) ? "number" : null }, button);
    });
    this.head.replaceChildren(h("tr", {}, ...heads));
  }

  /** Shows the first rows of `entries` in the chosen order; returns how many that are. */
  draw(entries) {
    const { column, descending } = this.sort;
    const value = column === CHANGED ? (entry) => entry.at : (entry) => order(entry.row[column]);
    const sign = descending ? -1 : 1;
    const sorted = entries
      .map((entry) => [value(entry), entry])
      .sort(([a, left], [b, right]) => sign * compare(a, b) || compare(left.key, right.key))
      .slice(0, SHOWN_MAX)
      .map(([, entry]) => entry);
    const shown = new Map(sorted.map((entry) => [entry.key, this.drawRow(entry)]));
    this.elements = shown;
    arrange(this.body, [...shown.values()].map((row) => row.element));
    return sorted.length;
  }

  drawRow(entry) {
    const known = this.elements.get(entry.key);
    const row = known ?? this.makeRow();
    if (row.drawn !== entry) {
      this.columns.forEach((column, i) => {
        const td = row.cells[i];
        const shownValue = entry.row[column];
        td.classList.toggle("number", this.numbers.has(column));
        if (text(td, cell(shownValue, this.kinds.get(this.columns[i]))) && (known || entry.fresh)) flash(td);
        if (typeof shownValue === "object" && shownValue !== null) td.title = JSON.stringify(shownValue);
        else if (isTimestamp(shownValue)) td.title = shownValue;
      });
      entry.fresh = false;
      row.drawn = entry;
    }
    row.element.classList.toggle("provisional", entry.provisional);
    row.mark.hidden = !entry.provisional;
    text(row.at, ago(entry.at));
    return row;
  }

  makeRow() {
    const cells = this.columns.map((column) => h("td", { "data-testid": `cell-${column}` }));
    const mark = h("span", { class: "mark", title: "This row may still change: its time is not over yet", hidden: "" }, "provisional");
    const at = h("span");
    const element = h("tr", {}, ...cells, h("td", { class: "number quiet" }, mark, at));
    return { element, cells, at, mark, drawn: null };
  }
}
