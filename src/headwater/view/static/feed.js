// A connection to server-sent events that says how it is and comes back by itself.

import { byId, text } from "./dom.js";

const LABELS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting" };
const FAILING = "failing";
const RETRY_MS = 1000;
const RETRY_MS_MAX = 10000;

let connection = "connecting";
let failing = 0;

/** Says how the connection is; a connection to an application that fails is not good either. */
function show(state) {
  connection = state;
  const element = byId("connection");
  const isFailing = state === "live" && failing > 0;
  element.dataset.state = isFailing ? FAILING : state;
  text(element, isFailing ? `${failing} ${failing === 1 ? "part fails" : "parts fail"}` : LABELS[state]);
}

/** How many parts of the application fail. */
export function setFailing(count) {
  failing = count;
  show(connection);
}

/**
 * Opens `path` and calls `handlers[event](data)`. The browser reconnects with Last-Event-ID; where it gives
 * up (the server answered with an error) a new connection resumes from the last position that was seen.
 */
export function open(path, handlers) {
  let position = null;
  let delay = RETRY_MS;

  function connect() {
    const source = new EventSource(position ? `${path}?since=${encodeURIComponent(position)}` : path);
    source.addEventListener("open", () => {
      delay = RETRY_MS;
      show("live");
    });
    source.addEventListener("error", () => {
      show("reconnecting");
      if (source.readyState !== EventSource.CLOSED) return;
      setTimeout(connect, delay);
      delay = Math.min(delay * 2, RETRY_MS_MAX);
    });
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        position = event.lastEventId || position;
        handle(JSON.parse(event.data));
      });
    }
  }

  show("connecting");
  connect();
}
