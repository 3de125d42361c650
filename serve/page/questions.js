/* The tree of questions: a row each, edges and the lanes of answers made together as one drawing beside them. */
import { $, counted, drawing, element, listed } from "./paper.js";

const INDENT = 18, DEEPEST = 9, LANE = 9, LANES = 4, DOT = { x: 9, y: 17 };
const DOING = { waiting: "waiting", planning: "planning …", retrieving: "looking for evidence …", answering: "answering …", stopped: "stopped before it was answered" };
const order = new Intl.Collator("en", { numeric: true });
const rows = $("rows"), edges = $("edges");
let nodes = new Map(), inOrder = [], queued = false, chosen = null, onChoose = () => {};

const compare = (a, b) => {
  const left = a.split("."), right = b.split(".");
  const at = left.findIndex((part, i) => part !== right[i]);
  if (at < 0) return left.length - right.length;
  return right[at] === undefined ? 1 : order.compare(left[at], right[at]);
};
const ink = node => `var(--w${(node.wave ?? 0) % 6})`;

export function clearQuestions() {
  nodes = new Map(); inOrder = []; chosen = null;
  rows.replaceChildren(); edges.replaceChildren();
  $("waves").replaceChildren();
  $("counts").textContent = "";
}

/** A question as it is now; the last word on it counts. */
export function putQuestion(told) {
  const known = nodes.get(told.id);
  const node = known ? Object.assign(known, told) : { evidence: [], citations: [], ...told };
  for (const name of ["cluster", "notes", "evidence", "citations"]) node[name] ??= [];
  if (!known) place(node);
  write(node);
  redraw();
}

export function putEvidence(id, passages) {
  const node = nodes.get(id);
  if (!node) return;
  node.evidence = passages;
  write(node);
  if (chosen === id) onChoose(node);
}

/** The stream ended early: nobody works on what is open any more. */
export function haltQuestions() {
  for (const node of nodes.values()) {
    if (node.state === "done" || node.state === "failed") continue;
    node.state = "stopped";
    write(node);
  }
  redraw();
}

function place(node) {
  nodes.set(node.id, node);
  let low = 0, high = inOrder.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compare(inOrder[middle], node.id) < 0) low = middle + 1; else high = middle;
  }
  const after = nodes.get(inOrder[low]);
  inOrder.splice(low, 0, node.id);
  node.level = node.parent ? (nodes.get(node.parent)?.level ?? 0) + 1 : 0;
  node.row = makeRow(node);
  rows.insertBefore(node.row.box, after?.row.box ?? null);
}

function makeRow(node) {
  const box = element("div", "", null, "row");
  box.setAttribute("role", "treeitem");
  box.setAttribute("aria-level", node.level + 1);
  box.dataset.id = node.id;
  box.tabIndex = nodes.size === 1 ? 0 : -1;
  box.style.setProperty("--level", Math.min(node.level, DEEPEST));
  const dot = element("span", "", box, "dot"), body = element("span", "", box, "body");
  const asked = element("span", "", body, "asked"), told = element("span", "", body, "told"), tags = element("span", "", body, "tags");
  asked.dir = told.dir = "auto";
  return { box, dot, asked, told, tags };
}

export function tellsOf(node) {
  if (node.state === "failed") return node.failure || "failed";
  if (node.state !== "done") return DOING[node.state] ?? node.state;
  if (node.answer === null || node.answered === false) return "not answered: the evidence does not say";
  return node.answer;
}
const kindOf = node => node.state === "done" && (node.answer === null || node.answered === false) ? "open" : node.state;

function write(node) {
  const { box, dot, asked, told, tags } = node.row;
  box.dataset.state = kindOf(node);
  dot.style.setProperty("--ink", ink(node));
  asked.textContent = node.question;
  told.textContent = tellsOf(node);
  const others = node.cluster.filter(id => id !== node.id);
  tags.textContent = listed([
    node.strategy, `wave ${node.wave ?? 0}`, others.length ? `together with ${others.join(", ")}` : "", node.reuses ? `reuses ${node.reuses}` : "",
    node.evidence.length ? counted(node.evidence.length, "passage") : "", node.notes.length ? counted(node.notes.length, "note") : "",
  ]);
}

/* the drawing */
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

function draw() {
  const at = new Map(inOrder.map(id => [id, dotOf(nodes.get(id))]));
  const width = rows.clientWidth, height = rows.scrollHeight;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) edges.setAttribute(name, value);
  edges.replaceChildren();
  drawing("path", { d: branches(at), class: "edge" }, edges);
  for (const { d, className, ink } of lanes(at)) drawing("path", { d, class: className }, edges).style.setProperty("stroke", ink);
  count();
}

const dotOf = node => ({ x: DOT.x + Math.min(node.level, DEEPEST) * INDENT, y: node.row.box.offsetTop + DOT.y });

function branches(at) {
  const steps = [];
  for (const id of inOrder) {
    const from = at.get(nodes.get(id).parent), to = at.get(id);
    if (!from) continue;
    if (from.x === to.x) steps.push(`M${from.x} ${to.y - 10}V${to.y - 6}`); // too deep to move further in
    else steps.push(`M${from.x} ${from.y + 7}V${to.y - 8}Q${from.x} ${to.y} ${from.x + 8} ${to.y}H${to.x - 6}`);
  }
  return steps.join("");
}

/** Lines at the right edge: one for each set of questions that one call answered, a dashed one from an answer to who reuses it. */
function lanes(at) {
  const ties = new Map(), taken = [];
  for (const id of inOrder) {
    const node = nodes.get(id);
    if (node.cluster.length > 1) ties.set([...node.cluster].sort().join(" "), { ids: node.cluster, className: "lane", ink: ink(node) });
    if (nodes.has(node.reuses)) ties.set(`reuse ${id}`, { ids: [node.reuses, id], className: "reuse", ink: "var(--quiet)" });
  }
  return [...ties.values()].map(({ ids, className, ink }) => {
    const heights = ids.map(id => at.get(id)?.y).filter(y => y !== undefined).sort((a, b) => a - b);
    let lane = taken.findIndex(end => end < heights[0]);
    if (lane < 0) lane = taken.length;
    taken[lane] = heights.at(-1);
    const x = rows.clientWidth - 4 - (lane % LANES) * LANE;
    return { className, ink, d: `M${x} ${heights[0]}V${heights.at(-1)}` + heights.map(y => `M${x - 4} ${y}H${x}`).join("") };
  });
}

function count() {
  const all = inOrder.map(id => nodes.get(id)), settled = all.filter(node => ["done", "failed"].includes(node.state));
  $("counts").textContent = `${settled.length} of ${counted(all.length, "question")} settled`;
  const waves = [...new Set(all.map(node => node.wave ?? 0))].sort((a, b) => a - b);
  $("waves").replaceChildren(...waves.map(wave => {
    const key = element("span", `wave ${wave}`);
    key.style.setProperty("--ink", ink({ wave }));
    return key;
  }));
}

/* hands */
export function chooseQuestion(id, focus = false) {
  if (chosen) nodes.get(chosen)?.row.box.removeAttribute("aria-selected");
  chosen = id;
  const node = nodes.get(id);
  for (const each of rows.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
  for (const each of rows.querySelectorAll(".kin")) each.classList.remove("kin");
  if (!node) { if (inOrder.length) nodes.get(inOrder[0]).row.box.tabIndex = 0; return; }
  node.row.box.tabIndex = 0;
  node.row.box.setAttribute("aria-selected", "true");
  for (const other of node.cluster) if (other !== id) nodes.get(other)?.row.box.classList.add("kin");
  if (focus) node.row.box.focus();
}

function stepFrom(id, key) {
  const at = inOrder.indexOf(id), node = nodes.get(id);
  if (key === "ArrowUp") return inOrder[Math.max(at - 1, 0)];
  if (key === "ArrowDown") return inOrder[Math.min(at + 1, inOrder.length - 1)];
  if (key === "ArrowLeft") return node.parent ?? id;
  if (key === "ArrowRight") return inOrder.find(other => nodes.get(other).parent === id) ?? id;
  if (key === "Home") return inOrder[0];
  if (key === "End") return inOrder.at(-1);
  return null;
}

export function listenToQuestions(choose) {
  onChoose = choose;
  const show = id => { chooseQuestion(id, true); choose(nodes.get(id), true); };
  rows.addEventListener("click", event => {
    const row = event.target.closest(".row");
    if (row && getSelection().isCollapsed) show(row.dataset.id);
  });
  rows.addEventListener("keydown", event => {
    const row = event.target.closest(".row");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = stepFrom(row.dataset.id, event.key);
    if (to) chooseQuestion(to, true);
    else if (event.key === "Enter" || event.key === " ") show(row.dataset.id);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(redraw).observe(rows);
}

/** Questions of a finished trace, parents first. */
export function* questionsOf(told) {
  const stack = [[told.trace.root, null]];
  while (stack.length) {
    const [node, parent] = stack.pop();
    const { children = [], bill, planned, question, failure, ...rest } = node;
    yield { ...rest, parent, question: question || planned, failure, state: failure ? "failed" : "done", unexplored: node.unexplored ?? [] };
    for (const child of [...children].reverse()) stack.push([child, node.id]);
  }
}
