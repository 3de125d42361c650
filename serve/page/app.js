/* The page: one question at a time, from the form to its end, whatever that end is. */
import { addDelta, clearAnswer, noteTitles, writeAnswer, writeResults } from "./answer.js";
import { askForKey, listenToFiles, listenToHistory, listenToKey, listenToTheme, readTrace, remember, saveTrace } from "./keeping.js";
import { $, button, counted, element, listed } from "./paper.js";
import { clearQuestions, haltQuestions, listenToQuestions, putEvidence, putQuestion, questionsOf } from "./questions.js";
import { closePanel, forgetDocuments, listenToReader, showQuestion } from "./reader.js";
import { Problem, ask, readiness, search, snapshots } from "./wire.js";

const LOOK_AGAIN = 4000; // ms, while something is not ready
let running = null, told = null, asked = "", looking = 0;

const mode = () => document.querySelector("input[name=mode]:checked").value;
function setMode(wanted) {
  document.querySelector(`input[name=mode][value=${wanted}]`).checked = true;
  $("send").textContent = wanted === "ask" ? "Ask" : "Search";
}

/* states: idle, running, done, failed, cut, cancelled */
function enter(state) {
  document.body.dataset.state = state;
  $("cancel").hidden = state !== "running";
  $("send").hidden = state === "running";
  if (state === "running" || state === "done") return;
  haltQuestions();
  if (!$("answer").textContent) $("answer-box").hidden = true;
}

function notice({ title, detail = "", next = "", id = "", kind = "bad" }, acts = []) {
  const box = $("notice");
  box.replaceChildren();
  box.className = `notice ${kind}`;
  element("strong", title, box);
  if (detail) element("p", detail, box);
  if (next) element("p", next, box, "next");
  if (id) element("p", `request ${id}`, box, "quiet");
  const bar = element("p", "", box, "acts");
  for (const [name, act] of acts) button(name, bar, act);
  bar.hidden = !acts.length;
  box.hidden = false;
}

const again = ["Try again", () => submit()];
const searchInstead = ["Search instead", () => { setMode("search"); submit(); }];
const enterKey = ["Enter a key", askForKey];

function tellProblem(error) {
  const problem = error.title ? error : { title: "The page could not read what came", detail: String(error), next: "Try again." };
  const acts = error.status === 401 || error.status === 403 ? [enterKey] : [again];
  if (mode() === "ask" && error.status === 503) acts.push(searchInstead);
  notice(problem, acts);
}

/* one question */
function begin(question) {
  running?.abort();
  running = new AbortController();
  told = null;
  asked = question;
  $("question").value = question;
  fit();
  clearAnswer(); clearQuestions(); forgetDocuments(); closePanel();
  $("notice").hidden = true;
  document.title = `${question.slice(0, 60)} · sproutrag`;
  enter("running");
  return running;
}

async function submit() {
  const question = $("question").value.trim();
  if (!question) { $("question").focus(); return; }
  const mine = begin(question);
  if (!matchMedia("(hover: hover)").matches) $("question").blur(); // a phone's keyboard would cover the answer
  try {
    const end = mode() === "ask" ? await askOut(question, mine.signal) : await searchOut(question, mine.signal);
    if (running === mine) enter(end);
  } catch (error) {
    if (running !== mine) return;
    enter(error.name === "AbortError" ? "cancelled" : "failed");
    if (error.name === "AbortError") notice({ title: "Cancelled", detail: "What had arrived is shown.", kind: "calm" }, [again]);
    else tellProblem(error);
  }
}

async function searchOut(query, signal) {
  const found = await search({ query }, signal);
  writeResults(found, query);
  remember({ at: Date.now(), mode: "search", question: query });
  return "done";
}

const READS = {
  start: () => { $("answer-box").hidden = $("tree-box").hidden = false; },
  node: putQuestion,
  evidence: ({ id, passages }) => { noteTitles(passages); putEvidence(id, passages); },
  answer: ({ delta, replace }) => addDelta(delta, replace),
  done: finish,
  error: problem => { throw new Problem(problem); },
};

async function askOut(question, signal) {
  for await (const { name, value } of ask({ question }, signal)) {
    if (name === "cut") return tellCut();
    READS[name]?.(value);
  }
  remember({ at: Date.now(), mode: "ask", question, answer: told.answer, told });
  return "done";
}

function tellCut() {
  notice({ title: "The connection ended before the answer did", detail: "What is shown may be incomplete.", next: "Try again; nothing was kept of this one." }, [again]);
  return "cut";
}

function finish(value) {
  told = value;
  $("answer-box").hidden = $("tree-box").hidden = false;
  for (const node of questionsOf(told)) { putQuestion(node); noteTitles(node.evidence ?? []); }
  writeAnswer(told);
}

/** A finished question, from history or from a file. */
function reopen(entry) {
  setMode(entry.mode ?? "ask");
  begin(entry.question);
  running = null;
  if (!entry.told) { enter("idle"); $("question").focus(); return; }
  finish(entry.told);
  enter("done");
}

async function openFile(file) {
  try {
    const read = await readTrace(file);
    reopen({ question: read.question ?? "", told: read });
  } catch (error) {
    enter("failed");
    notice(error.title ? error : { title: "This file is no trace", detail: String(error), next: "Save one here first." });
  }
}

/* is everything there? */
const lookAgain = () => { clearTimeout(looking); looking = setTimeout(look, LOOK_AGAIN); };

async function look() {
  try {
    const { retriever, llm } = await readiness();
    const facts = retriever.ready ? await tellIndex() : "opening the index …";
    $("ready").textContent = listed([facts, llm.ready ? "" : "model loading"]);
    $("loading").hidden = llm.ready || !retriever.ready;
    $("loading").textContent = `The language model is still loading; search works already.${llm.detail ? ` (${llm.detail})` : ""}`;
    if (!retriever.ready || !llm.ready) lookAgain();
  } catch (error) {
    $("ready").textContent = error.status === 401 ? "a key is needed" : "the server does not answer";
    if (error.status === 401) tellProblem(error); else lookAgain();
  }
}

async function tellIndex() {
  const { current, snapshots: all } = await snapshots(), now = all.find(each => each.id === current);
  const known = now && now.documents !== 0; // null: this key sees a part of the index, and is not told how much there is
  $("empty").hidden = Boolean(known);
  if (known) return listed([now.documents === null ? "" : counted(now.documents, "document"), `snapshot ${current}`]);
  lookAgain();
  return "no documents";
}

/* hands */
function fit() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function onKey(event) {
  const typing = event.target.closest?.("input, textarea, dialog");
  if (event.key === "/" && !typing) { event.preventDefault(); $("question").focus(); }
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (!closePanel() && document.body.dataset.state === "running") running.abort();
}

function listen() {
  $("form").addEventListener("submit", event => { event.preventDefault(); submit(); });
  $("question").addEventListener("input", fit);
  $("question").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  for (const choice of document.querySelectorAll("input[name=mode]")) choice.addEventListener("change", () => setMode(choice.value));
  $("cancel").addEventListener("click", () => running?.abort());
  $("save").addEventListener("click", () => saveTrace(told));
  document.addEventListener("keydown", onKey);
  listenToQuestions((node, moved) => showQuestion(node, { query: node.query || node.question || asked, from: moved ? node.row.box : null }));
  listenToReader(); listenToHistory(reopen); listenToTheme(); listenToFiles(openFile);
  listenToKey(() => { $("notice").hidden = true; look(); });
}

listen();
look();
if (matchMedia("(hover: hover)").matches) $("question").focus();
