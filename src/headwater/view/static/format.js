// Numbers and times in the reader's language, by Intl.

const TIMESTAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;
const DECIMAL = /^-?\d{1,30}(\.\d{1,30})?$/;

const ID = /(^|_)(id|uuid|guid|code|year)$|[a-z](Id|Uuid|Code|Year)$/;
const NUMBER = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE)\b/;
const ZONE = "headwater.zone"; // where a browser keeps the reader's choice

/** The zone of all times on the page, and the other one that a reader may choose. */
export const localZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const zone = stored() === "UTC" ? "UTC" : localZone;

function stored() {
  try {
    return localStorage.getItem(ZONE);
  } catch {
    return null; // a browser that keeps nothing
  }
}

export function chooseZone(name) {
  localStorage.setItem(ZONE, name);
}

const inZone = (options) => new Intl.DateTimeFormat(undefined, { timeZone: zone, ...options });

const whole = new Intl.NumberFormat();
const twoPlaces = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const exact = new Intl.NumberFormat(undefined, { maximumFractionDigits: 20 });
const fewPlaces = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const threeDigits = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = inZone({ hour: "2-digit", minute: "2-digit" });
const clockSeconds = inZone({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayClock = inZone({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const dayClockSeconds = inZone({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-CA", { timeZone: zone });
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });

export const isTimestamp = (value) => typeof value === "string" && TIMESTAMP.test(value);

export const isWindow = (value) =>
  value !== null && typeof value === "object" && isTimestamp(value.start) && isTimestamp(value.end);

/** A column of hw.sketch: what it says is a word, its bytes are thousands of letters. */
export const isSketch = (value) =>
  value !== null && typeof value === "object" && "estimate" in value && "sketch" in value;

/** The number in a JSON value (decimals travel as strings), or null. */
export function numeric(value) {
  if (typeof value === "number") return value;
  if (typeof value === "string" && DECIMAL.test(value)) return Number(value);
  return null;
}

/**
 * How the values of a column are written. An `id` names something: it has no separators, and is not a measure.
 * `type` is the column's in Spark's notation, where the view says it; `guess` looks at each value.
 */
export function kind(column, key, type) {
  if (key.includes(column) || ID.test(column)) return "id";
  if (type === undefined) return "guess";
  if (type.startsWith("DECIMAL")) return "decimal";
  return NUMBER.test(type) ? "number" : "other";
}

export const isMeasure = (kindOf) => ["number", "decimal", "guess"].includes(kindOf);

export function number(value) {
  if (Number.isInteger(value)) return whole.format(value);
  return Math.abs(value) < 1 ? threeDigits.format(value) : twoPlaces.format(value);
}

/** For axes and figures, where room matters more than the last digit. */
export function short(value) {
  if (Math.abs(value) >= 10000) return compact.format(value);
  return Math.abs(value) >= 10 ? fewPlaces.format(value) : threeDigits.format(value);
}

function sameDay(a, b) {
  return day.format(a) === day.format(b);
}

/** How far the zone of the page is from UTC at a moment, in milliseconds, as Date.getTimezoneOffset counts. */
export function zoneOffset(ms) {
  return zone === "UTC" ? 0 : new Date(ms).getTimezoneOffset() * 60_000;
}

export function time(when) {
  const at = new Date(when);
  if (!sameDay(at, new Date())) return dayClock.format(at);
  return at.getSeconds() ? clockSeconds.format(at) : clock.format(at);
}

/** A moment to the second, even where that is a round one. */
export function moment(when) {
  const at = new Date(when);
  return (sameDay(at, new Date()) ? clockSeconds : dayClockSeconds).format(at);
}

/** A tick on a time axis whose ticks are `step` milliseconds apart. */
export function tick(ms, step) {
  if (step < 60_000) return clockSeconds.format(ms);
  return step < 86_400_000 ? clock.format(ms) : dayClock.format(ms);
}

export function timeWindow(value) {
  const end = new Date(value.end);
  const seconds = new Date(value.start).getSeconds() || end.getSeconds();
  return `${time(value.start)} – ${(seconds ? clockSeconds : clock).format(end)}`;
}

export function ago(ms) {
  if (ms === null || ms === undefined) return "never";
  const seconds = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (seconds < 1) return "now";
  if (seconds < 60) return relative.format(-seconds, "second");
  if (seconds < 3600) return relative.format(-Math.floor(seconds / 60), "minute");
  if (seconds < 86400) return relative.format(-Math.floor(seconds / 3600), "hour");
  return relative.format(-Math.floor(seconds / 86400), "day");
}

/** A cell of a view's row as a reader wants to see it, in a column of a `kind`. */
export function cell(value, kindOf = "guess") {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return kindOf === "id" ? String(value) : number(value);
  if (kindOf === "decimal" && typeof value === "string" && DECIMAL.test(value)) return exact.format(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (isWindow(value)) return timeWindow(value);
  if (isTimestamp(value)) return time(value);
  if (isSketch(value)) return `≈ ${cell(value.estimate)}`;
  return typeof value === "string" ? value : JSON.stringify(value);
}
