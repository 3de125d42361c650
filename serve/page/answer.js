/* The answer as it comes: text, numbered citations, what stayed open, what it cost. Passages of a search. */
import { $, button, counted, element, listed } from "./paper.js";
import { openDocument, writePassage } from "./reader.js";

let streamed = "", titles = new Map();

export function clearAnswer() {
  streamed = "";
  titles = new Map();
  for (const id of ["answer", "flags", "sources", "open", "results"]) $(id).replaceChildren();
  for (const id of ["facts", "results-facts"]) $(id).textContent = "";
  for (const id of ["answer-box", "tree-box", "results-box", "open-box", "flags", "save"]) $(id).hidden = true;
}

export function noteTitles(passages) {
  for (const passage of passages) if (passage.title) titles.set(passage.doc_id, passage.title);
}

/** replace: all of it anew, because a reply came to nothing and another began. */
export function addDelta(text, replace) {
  streamed = replace ?? streamed + text;
  $("answer").textContent = streamed;
}

/** The whole of it: told is what `sproutrag ask --json` prints. */
export function writeAnswer(told) {
  const box = $("answer"), citations = told.citations ?? [];
  box.replaceChildren();
  box.classList.toggle("unanswered", !told.answered);
  const placed = new Set();
  for (const piece of told.answer.split(/(\[\d+\])/)) { // a model may have written the numbers itself
    const number = Number(piece.match(/^\[(\d+)\]$/)?.[1]);
    if (citations[number - 1]) { box.append(mark(told, number)); placed.add(number); } else box.append(piece);
  }
  citations.forEach((_, i) => { if (!placed.has(i + 1)) box.append("\u2009", mark(told, i + 1)); });
  citations.forEach((citation, i) => writeSource(told, citation, i + 1));
  writeFlags(told);
  writeOpen(told.open ?? []);
  $("facts").textContent = factsOf(told);
  $("save").hidden = false;
}

const place = (told, number) => {
  const { doc_id: id, spans, quote } = told.citations[number - 1];
  return { id, title: titles.get(id), spans, quote, query: told.question };
};

/** Pointing lights the sentence, and so does the keyboard; a click also moves there. */
function lights(control, told, number) {
  const show = extra => { openDocument({ ...place(told, number), from: control, ...extra }); markCited(number); };
  control.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") show(); });
  control.addEventListener("focus", () => { if (control.matches(":focus-visible") && !document.body.dataset.returning) show(); });
  control.addEventListener("click", () => show({ move: true }));
}

function mark(told, number) {
  const control = button(number, null, () => {}, "cite");
  control.dataset.cites = number;
  control.setAttribute("aria-label", `Source ${number}: ${told.citations[number - 1].doc_id}`);
  lights(control, told, number);
  return control;
}

function writeSource(told, citation, number) {
  const item = element("li", "", $("sources")), open = button("", item, () => {}, "source");
  open.dataset.cites = number;
  element("span", number, open, "number");
  const text = element("span", "", open, "what");
  element("q", citation.quote, text).dir = "auto";
  element("span", titles.get(citation.doc_id) ?? citation.doc_id, text, "quiet").dir = "auto";
  lights(open, told, number);
}

function markCited(number) {
  for (const each of document.querySelectorAll("[data-cites]")) each.classList.toggle("on", each.dataset.cites === String(number));
}

function writeFlags(told) {
  const flags = $("flags");
  if (told.partial) element("li", "Partial: a limit or a failure kept something out.", flags, "warn");
  for (const warning of (told.warnings ?? []).slice(0, 20)) element("li", warning, flags).dir = "auto";
  flags.hidden = !flags.childElementCount;
}

function writeOpen(open) {
  $("open-box").hidden = !open.length;
  for (const { question, reason } of open) {
    const item = element("li", "", $("open"));
    element("span", question, item).dir = "auto";
    element("span", reason, item, "quiet");
  }
}

function factsOf({ usage, trace }) {
  const seconds = trace.root.ended - trace.root.began;
  return listed([
    usage ? counted(usage.calls, "call") : "", usage ? counted(usage.prompt_tokens + usage.completion_tokens, "token") : "",
    usage?.wasted_calls ? `${usage.wasted_calls} wasted` : "", seconds > 0 ? `${seconds.toFixed(1)} s` : "",
    trace.model, trace.method, trace.snapshot ? `snapshot ${trace.snapshot}` : "",
  ]);
}

export function writeResults({ passages, snapshot, seconds }, query) {
  $("results-box").hidden = false;
  $("results-facts").textContent = passages.length
    ? listed([counted(passages.length, "passage"), `${(seconds * 1000).toFixed(0)} ms`, `snapshot ${snapshot}`])
    : "Nothing in the documents matches. Try other words.";
  for (const passage of passages) {
    const item = element("li", "", $("results"));
    const open = writePassage(passage, query, item);
    const show = () => openDocument({ id: passage.doc_id, title: passage.title, spans: passage.spans, quote: passage.text, query, from: open });
    item.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") show(); });
    open.addEventListener("focus", () => { if (open.matches(":focus-visible") && !document.body.dataset.returning) show(); });
  }
}
