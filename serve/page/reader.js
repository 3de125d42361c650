/* The panel beside the answer: a document with sentences lit, its sprout tree, or one question in full. */
import { $, button, counted, element, listed, ranges, ruler } from "./paper.js";
import { drawSprout } from "./sprout.js";
import { readDocument, readTree } from "./wire.js";

const HELD = 24; // documents kept, and trees; the oldest goes first
const BLOCK = 400; // UTF-16 units a block of text has at least
const body = $("panel-body");
let documents = new Map(), trees = new Map(), turn = 0, shown = null, wanted = "text", leftFrom = null;

export function forgetDocuments() { documents = new Map(); trees = new Map(); }

function hold(shelf, name, fetched) {
  if (!shelf.has(name)) {
    if (shelf.size >= HELD) shelf.delete(shelf.keys().next().value);
    const coming = fetched();
    coming.catch(() => shelf.delete(name));
    shelf.set(name, coming);
  }
  return shelf.get(name);
}

async function prepared(id) {
  const told = await readDocument(id), place = ruler(told.text);
  return { ...told, place, blocks: null };
}

/* the panel itself */
function openPanel(title, facts, tabs) {
  document.body.dataset.reading = "";
  $("panel-head").hidden = false;
  $("tabs").hidden = !tabs;
  $("panel-title").textContent = title;
  $("panel-facts").textContent = facts;
}

export function closePanel() {
  turn++;
  const wasOpen = "reading" in document.body.dataset;
  delete document.body.dataset.reading;
  $("panel-head").hidden = true;
  shown = null;
  unmark();
  body.replaceChildren();
  element("p", "Point at a citation or a passage to read it where it stands.", body, "quiet empty");
  if (wasOpen) comeBack();
  return wasOpen;
}

const unmark = () => document.querySelectorAll("[data-cites].on").forEach(each => each.classList.remove("on"));

/** The keyboard goes back to where the panel was opened from, without opening it again. */
function comeBack() {
  document.body.dataset.returning = "";
  if (leftFrom?.isConnected) leftFrom.focus({ preventScroll: true });
  leftFrom = null;
  delete document.body.dataset.returning;
}

function tell(problem, quote) {
  body.replaceChildren();
  element("p", problem.title ?? "This could not be read", body, "bad");
  element("p", listed([problem.detail ?? String(problem), problem.next]), body, "quiet");
  if (quote) { element("h3", "As it was cited", body); element("blockquote", quote, body).dir = "auto"; }
}

/** Show a document. spans: code points to light. query: whose beam the tree shows. move: take the keyboard there. */
export async function openDocument({ id, title = "", spans = [], quote = "", query = "", tab = "text", move = false, from = null }) {
  const mine = ++turn;
  if (from) leftFrom = from;
  wanted = tab;
  if (shown?.id !== id) {
    shown = null;
    openPanel(title || id, "opening …", true);
    body.replaceChildren();
  }
  try {
    const held = await hold(documents, id, () => prepared(id));
    if (mine !== turn) return;
    shown = { id, held, spans, query, quote };
    openPanel(held.title || id, listed([held.title ? id : "", counted(held.leaves.length, "leaf", "leaves"), `snapshot ${held.snapshot}`]), true);
    await showTab(wanted);
    if (move) $("panel-title").focus({ preventScroll: true });
  } catch (error) {
    if (mine === turn) tell(error, quote);
  }
}

async function showTab(tab) {
  $("tab-text").setAttribute("aria-pressed", tab === "text");
  $("tab-tree").setAttribute("aria-pressed", tab === "tree");
  if (tab === "text") showText(); else await showTree();
}

/* text */
function showText() {
  const { held, spans } = shown;
  body.onscroll = null;
  held.blocks ??= cutBlocks(held.text);
  if (body.firstChild !== held.page) {
    held.page ??= written(held.blocks);
    body.replaceChildren(held.page);
  }
  light(held, spans);
  body.querySelector("mark")?.scrollIntoView({ block: "center", inline: "nearest" });
  requestAnimationFrame(() => { // again, once what came into view has its true height
    const lit = body.querySelector("mark");
    if (lit) body.scrollTop += lit.getBoundingClientRect().top - body.getBoundingClientRect().top - body.clientHeight * .4;
    else body.scrollTop = 0;
  });
}

/** Blocks of whole lines, so that only what is seen is laid out. */
function cutBlocks(text) {
  const blocks = [];
  for (let start = 0; start < text.length;) {
    const line = text.indexOf("\n", start + BLOCK), end = line < 0 ? text.length : line + 1;
    blocks.push({ start, end, text: text.slice(start, end), lit: false });
    start = end;
  }
  return blocks;
}

function written(blocks) {
  const page = element("article", "", null, "page");
  page.dir = "auto";
  for (const block of blocks) block.box = element("div", block.text, page);
  return page;
}

function light(held, spans) {
  const places = spans.map(([start, end]) => [held.place(start), held.place(end)]);
  for (const block of held.blocks) {
    const within = places.map(([a, b]) => [Math.max(a, block.start), Math.min(b, block.end)]).filter(([a, b]) => a < b);
    if (!within.length && !block.lit) continue;
    block.lit = within.length > 0;
    block.box.replaceChildren();
    let at = block.start;
    for (const [start, end] of within) {
      block.box.append(held.text.slice(at, start));
      element("mark", held.text.slice(start, end), block.box);
      at = end;
    }
    block.box.append(held.text.slice(at, block.end));
  }
}

/* the sprout tree */
async function showTree() {
  const mine = turn, { id, held, query } = shown;
  body.onscroll = null;
  body.replaceChildren();
  element("p", "growing the tree …", body, "quiet empty");
  const tree = await hold(trees, `${query}\n${id}`, () => readTree(id, query));
  if (mine !== turn) return;
  body.replaceChildren();
  const textOf = ([start, end]) => held.text.slice(held.place(start), held.place(end));
  drawSprout(body, { tree, query, textOf, read: leaves => {
    shown.spans = leaves.map(leaf => tree.leaves[leaf]);
    showTab("text");
    $("tab-text").focus();
  } });
}

/* one question in full */
export function showQuestion(node, { query = "", from = null } = {}) {
  turn++;
  shown = null;
  unmark();
  if (from) leftFrom = from;
  openPanel(node.question, listed([node.id, node.strategy, `wave ${node.wave ?? 0}`, node.state]), false);
  body.replaceChildren();
  const box = element("div", "", body, "detail");
  if (node.answer) element("p", node.answer, box, "said").dir = "auto";
  if (node.failure) element("p", node.failure, box, "bad");
  writeList("Answered together with", node.cluster.filter(id => id !== node.id), box);
  writeList("Notes", node.notes, box);
  writeList("Not explored", node.unexplored ?? [], box);
  if (node.citations.length) element("h3", "Cited", box);
  const titleOf = id => node.evidence.find(passage => passage.doc_id === id)?.title;
  for (const cited of node.citations) writePassage({ ...cited, text: cited.quote, title: titleOf(cited.doc_id) }, query, box);
  if (node.evidence.length) element("h3", `Evidence, ${counted(node.evidence.length, "passage")}`, box);
  for (const passage of node.evidence) writePassage(passage, query, box);
  if (!box.childElementCount) element("p", "Nothing is known of it yet.", box, "quiet");
  body.scrollTop = 0;
}

function writeList(title, items, box) {
  if (!items.length) return;
  element("h3", title, box);
  const list = element("ul", "", box);
  for (const item of items) element("li", item, list).dir = "auto";
}

export function writePassage(passage, query, box) {
  const shownIn = tab => event => openDocument({ id: passage.doc_id, title: passage.title, spans: passage.spans, quote: passage.text, query, tab,
    move: true, from: event.currentTarget });
  const item = element("div", "", box, "passage"), head = element("p", "", item, "facts");
  const open = button(passage.title || passage.doc_id, head, shownIn("text"), "link doc");
  open.dir = "auto";
  const facts = [passage.leaves?.length ? `leaves ${ranges(passage.leaves)}` : "", typeof passage.score === "number" ? passage.score.toFixed(3) : ""];
  element("span", listed(facts), head);
  button("tree", head, shownIn("tree"), "link").setAttribute("aria-label", `Sprout tree of ${passage.title || passage.doc_id}`);
  element("blockquote", passage.text, item).dir = "auto";
  return open;
}

export function listenToReader() {
  $("close").addEventListener("click", closePanel);
  for (const tab of ["text", "tree"])
    $(`tab-${tab}`).addEventListener("click", () => {
      wanted = tab; // before the document has come, it opens as this
      if (shown) showTab(tab).catch(error => tell(error, shown?.quote));
    });
  closePanel();
}
