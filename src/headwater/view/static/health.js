// How the parts of the application are, asked every few seconds: what fails is listed on every page.

import { byId, h } from "./dom.js";
import { setFailing } from "./feed.js";
import { moment } from "./format.js";

const EVERY_MS = 2000;
const ANSWER_MS = 10000; // a console that hangs is asked again
const BAD = new Set(["failing", "stopped", "down"]);

let parts = new Map();
let drawn = "";

const title = (part) => (part.kind === part.name ? part.name : `${part.kind} ${part.name}`);

/** The part of a kind with a name, or undefined while that is not known. */
export const part = (kind, name) => parts.get(`${kind} ${name}`);

export const isBad = (found) => found !== undefined && BAD.has(found.state);

function draw() {
  const bad = [...parts.values()].filter(isBad);
  setFailing(bad.length);
  const text = JSON.stringify(bad.map(({ kind, name, state, error }) => [kind, name, state, error]));
  if (text === drawn) return; // a reader may be selecting it
  drawn = text;
  const list = byId("parts");
  list.hidden = !bad.length;
  list.replaceChildren(
    ...bad.map((each) => h("li", {}, h("b", {}, title(each)), ` ${each.state} since ${moment(each.since_ms)}: ${each.error}`)),
  );
}

async function ask(onChange) {
  try {
    const answer = await fetch("/health", { signal: AbortSignal.timeout(ANSWER_MS) }); // 503 while a part fails, with the same content
    const report = await answer.json();
    if (Array.isArray(report.parts)) {
      parts = new Map(report.parts.map((each) => [`${each.kind} ${each.name}`, each]));
      draw();
      onChange();
    }
  } catch {
    // The console is away, which the connection says.
  }
  setTimeout(() => ask(onChange), EVERY_MS);
}

/** Begins to ask; `onChange` is called after each answer. */
export function follow(onChange = () => {}) {
  ask(onChange);
}
