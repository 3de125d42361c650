/* The wire: what is asked of the server and how its answers arrive. Knows nothing of the page. */

const STALLED_AFTER = 45000; // ms; the server sends a comment every 10 s
let key = "";

export const useKey = value => { key = value; };

/** What went wrong, in the words of problem+json: what, where, what to do next. */
export class Problem extends Error {
  constructor({ title, detail = "", next = "", status = 0, request_id: id = "" }) {
    super(title);
    Object.assign(this, { title, detail, next, status, id });
  }
}

const UNREACHABLE = {
  title: "The server does not answer",
  detail: "No connection came about.",
  next: "See whether `sproutrag serve` is running, then try again.",
};

async function problemOf(response) {
  const plain = { title: `The server answered ${response.status}`, detail: response.statusText, next: "Try again in a moment." };
  const told = await response.json().catch(() => null);
  const id = response.headers.get("X-Request-Id") ?? "";
  return new Problem({ ...plain, request_id: id, ...(told && typeof told === "object" ? told : {}), status: response.status });
}

async function send(path, { body, accept = "application/json", signal } = {}) {
  const headers = { Accept: accept };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const request = { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body), cache: "no-store" };
  try {
    return await fetch(path, request);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Problem(UNREACHABLE);
  }
}

async function json(path, request) {
  const response = await send(path, request);
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

export const search = (body, signal) => json("v1/search", { body, signal });
export const snapshots = () => json("v1/snapshots");
export const readDocument = id => json(`v1/documents/${encodeURIComponent(id)}`);
export const readTree = (id, query) =>
  json(`v1/trees/${encodeURIComponent(id)}${query ? `?query=${encodeURIComponent(query)}` : ""}`);

/** {ready, retriever, llm}; 503 carries the same shape. */
export async function readiness() {
  const response = await send("readyz");
  const told = await response.json().catch(() => null);
  if (!told?.retriever) throw new Problem({ ...UNREACHABLE, status: response.status });
  return told;
}

/** Server-sent events out of text that arrives in any pieces; an event counts once its blank line has come. */
export function eventReader() {
  let held = "", begun = [], name = "", data = [];
  const read = line => {
    if (line.startsWith(":")) return null;
    if (line === "") {
      const event = data.length ? { name: name || "message", data: data.join("\n") } : null;
      name = ""; data = [];
      return event;
    }
    const [, field, value] = line.match(/^([^:]*):? ?([^]*)$/);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
    return null;
  };
  return text => {
    const lines = (held + text).split(/\r\n|\n|\r(?!$)/);
    let last = lines.pop();
    held = last.endsWith("\r") ? "\r" : ""; // the \n of this line end may be in the next piece
    last = held ? last.slice(0, -1) : last;
    if (lines.length) { lines[0] = begun.join("") + lines[0]; begun = []; }
    begun.push(last);
    return lines.map(read).filter(Boolean);
  };
}

async function patiently(reading) {
  let timer;
  const stalled = new Promise(resolve => { timer = setTimeout(() => resolve({ done: true }), STALLED_AFTER); });
  return Promise.race([reading, stalled]).finally(() => clearTimeout(timer));
}

/** Text of a response as it comes. Ends quietly when the connection breaks: the caller misses the end marker. */
async function* pieces(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await patiently(reader.read());
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Events of one question as {name, value}; the last one is done, error or cut. */
export async function* ask(body, signal) {
  const response = await send("v1/ask", { body, signal, accept: "text/event-stream" });
  if (!response.ok) throw await problemOf(response);
  if (response.headers.get("Content-Type")?.startsWith("application/json")) {
    yield { name: "done", value: await response.json() };
    return;
  }
  const read = eventReader();
  for await (const text of pieces(response)) {
    for (const { name, data } of read(text)) {
      yield { name, value: JSON.parse(data) };
      if (name === "done" || name === "error") return;
    }
  }
  yield { name: "cut" };
}
