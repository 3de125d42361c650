/* The sprout tree of one document: root at the left, leaves with their text at the right, the beam's path drawn over it. */
import { counted, drawing, element, listed, ranges } from "./paper.js";

const ROW = 22, CORNER = 4, MARGIN = 10, AHEAD = 20; // px; px; px; rows written above and below what is seen

/** tree: what /v1/trees tells. textOf(span). read(leaves): the reader wants these in the text. */
export function drawSprout(box, { tree, query, textOf, read }) {
  if (!tree.nodes.length) { element("p", "This document has no text.", box, "quiet empty"); return; }
  const told = element("div", "", box, "told-strip"), canvas = element("div", "", box, "canvas");
  const width = Math.round(Math.min(Math.max(box.clientWidth * .45, 110), 300));
  const shape = shapeOf(tree, width);
  const view = { box, canvas, told, tree, query, textOf, read, shape, width, at: tree.evidence?.[0] ?? tree.root, scores: new Map((tree.path ?? []).map(step => [step.node, step])) };
  canvas.style.height = `${shape.leaves.length * ROW}px`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Sprout tree. Left: parent. Right: first child. Up and down: the other children. Enter: read it in the text.");
  drawEdges(view);
  const write = () => writeLeaves(view);
  box.onscroll = write;
  write();
  listen(view);
  pick(view, view.at);
  revealEvidence(view);
}

/** Where each node stands: leaves one below the other as the tree has them, inner nodes by the rank of their height. */
function shapeOf(tree, width) {
  const nodes = new Map(tree.nodes.map(node => [node.node, nodeOf(tree, node)]));
  for (const node of nodes.values()) for (const child of node.children) nodes.get(child).parent = node.node;
  const leaves = [], stack = [tree.root], upwards = [];
  while (stack.length) {
    const node = nodes.get(stack.pop());
    upwards.push(node);
    if (!node.children.length) { node.x = width; node.y = leaves.length * ROW + ROW / 2; leaves.push(node); }
    stack.push(...node.children.toReversed()); // the earlier child first, as stored
  }
  upwards.reverse();
  for (const node of upwards) if (node.children.length) node.y = middle(node.children.map(id => nodes.get(id).y));
  placeAcross(upwards.filter(node => node.children.length), nodes.get(tree.root), width);
  return { nodes, leaves };
}

/** A node is a slice of the leaf order; its leaves are listed only when somebody asks. */
function nodeOf(tree, node) {
  const [start, stop] = node.slice, leaves = () => tree.order.slice(start, stop).sort((a, b) => a - b);
  return Object.defineProperty({ ...node, parent: null, size: stop - start }, "leaves", { get: leaves });
}

const middle = heights => heights.reduce((sum, y) => sum + y, 0) / heights.length;

function placeAcross(inner, root, width) {
  const sign = inner.length && inner.some(node => node.height > root.height) ? -1 : 1; // affinity falls, distance rises towards the root
  const ranked = [...inner].sort((a, b) => sign * (a.height - b.height) || a.size - b.size);
  const step = (width - MARGIN) / Math.max(ranked.length, 1);
  ranked.forEach((node, rank) => { node.x = width - (rank + 1) * step; });
}

/* drawing: one path for each kind of line, so that thousands of nodes stay a handful of shapes */
function elbow(parent, child) {
  const side = Math.sign(child.y - parent.y), bend = Math.min(CORNER, Math.abs(child.y - parent.y), child.x - parent.x);
  if (!side) return `M${parent.x} ${parent.y}H${child.x}`;
  return `M${parent.x} ${parent.y}V${child.y - side * bend}Q${parent.x} ${child.y} ${parent.x + bend} ${child.y}H${child.x}`;
}

function edgesOf({ nodes }, ids) {
  return ids.map(id => nodes.get(id)).filter(node => node && node.parent !== null).map(node => elbow(nodes.get(node.parent), node)).join("");
}

function drawEdges(view) {
  const { tree, shape, canvas, width } = view, height = shape.leaves.length * ROW, path = tree.path ?? [];
  const svg = drawing("svg", { width: width + 6, height, viewBox: `0 0 ${width + 6} ${height}`, "aria-hidden": "true" }, canvas);
  drawing("path", { d: edgesOf(shape, [...shape.nodes.keys()]), class: "edge" }, svg);
  view.below = drawing("path", { class: "below" }, svg);
  drawing("path", { d: edgesOf(shape, path.filter(step => !step.kept).map(step => step.node)), class: "visited" }, svg);
  drawing("path", { d: edgesOf(shape, path.filter(step => step.kept).map(step => step.node)), class: "kept" }, svg);
  for (const step of path) dotAt(shape.nodes.get(step.node), step.kept ? "dot-kept" : "dot-visited", 2.5, svg);
  for (const id of tree.evidence ?? []) dotAt(shape.nodes.get(id), "dot-evidence", 4.5, svg);
  view.here = drawing("circle", { r: 5, class: "here" }, svg);
}

function dotAt(node, className, r, svg) {
  if (node) drawing("circle", { cx: node.x, cy: node.y, r, class: className }, svg);
}

function writeLeaves(view) {
  const { box, canvas, shape, width, tree } = view;
  const top = Math.max(0, Math.floor((box.scrollTop - canvas.offsetTop) / ROW) - AHEAD);
  const end = Math.min(shape.leaves.length, top + Math.ceil(box.clientHeight / ROW) + 2 * AHEAD);
  if (view.from === top && view.to === end) return;
  Object.assign(view, { from: top, to: end });
  const found = new Set((tree.evidence ?? []).flatMap(id => shape.nodes.get(id)?.leaves ?? []));
  for (const row of canvas.querySelectorAll(".leaf")) row.remove();
  for (let i = top; i < end; i++) {
    const leaf = shape.leaves[i].leaves[0], row = element("div", "", canvas, found.has(leaf) ? "leaf found" : "leaf");
    Object.assign(row.style, { top: `${i * ROW}px`, insetInlineStart: `${width + 8}px` });
    element("b", leaf, row);
    element("span", view.textOf(tree.leaves[leaf] ?? [0, 0]).replace(/\s+/g, " ").trim().slice(0, 160), row).dir = "auto";
  }
  markLeaves(view);
}

function markLeaves(view) {
  const below = new Set(view.at === view.tree.root ? [] : view.shape.nodes.get(view.at).leaves);
  for (const row of view.canvas.querySelectorAll(".leaf")) row.classList.toggle("on", below.has(Number(row.firstChild.textContent)));
}

/* one node */
function pick(view, id) {
  const { shape, tree } = view, node = shape.nodes.get(id);
  view.at = id;
  view.below.setAttribute("d", id === tree.root ? "" : edgesOf(shape, idsBelow(shape, node)));
  view.here.setAttribute("cx", node.x);
  view.here.setAttribute("cy", node.y);
  markLeaves(view);
  const step = view.scores.get(id), total = shape.leaves.length;
  view.told.replaceChildren();
  element("b", `${id === tree.root ? "Root" : node.children.length ? "Node" : "Leaf"} ${id}`, view.told);
  element("span", listed([
    node.children.length ? `leaves ${ranges(node.leaves)} of ${total}` : "",
    Number.isFinite(node.height) && node.children.length ? `height ${node.height.toPrecision(3)}` : "",
    step ? `score ${step.score.toFixed(3)}` : "", beamTells(view, step),
    (tree.evidence ?? []).includes(id) ? "evidence" : "",
  ]), view.told).setAttribute("role", "status");
  const open = element("button", "Read it", view.told, "link");
  open.type = "button";
  open.addEventListener("click", () => view.read(node.leaves));
  element("p", view.query ? `Bold: the beam's path for “${view.query}”; dotted: looked at; amber: evidence.`
    : `${counted(total, "leaf", "leaves")}; open the document from an answer to see the beam's path.`, view.told, "quiet").dir = "auto";
}

function beamTells({ at, tree, query }, step) {
  if (step) return step.kept ? "kept by the beam" : "visited, not kept";
  if (!query) return "";
  return at === tree.root ? "where the beam begins" : "not visited";
}

function idsBelow({ nodes }, node) {
  const ids = [], stack = [...node.children];
  while (stack.length) { const id = stack.pop(); ids.push(id); stack.push(...nodes.get(id).children); }
  return ids;
}

/** The node whose edge is nearest: from the leaf of that row towards the root, until it begins left of the pointer. */
function nodeAt(view, event) {
  const rect = view.canvas.getBoundingClientRect(), x = event.clientX - rect.left, y = event.clientY - rect.top;
  const { nodes, leaves } = view.shape;
  let node = leaves[Math.max(0, Math.min(leaves.length - 1, Math.floor(y / ROW)))];
  while (node.parent !== null && node.x > x + 4) node = nodes.get(node.parent);
  return node.node;
}

function stepFrom({ nodes }, id, key) {
  const node = nodes.get(id), up = nodes.get(node.parent);
  if (key === "ArrowLeft") return node.parent ?? id;
  if (key === "ArrowRight") return node.children[0] ?? id;
  if (key === "Home") return [...nodes.values()].find(each => each.parent === null).node;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const beside = up ? [...up.children].sort((a, b) => nodes.get(a).y - nodes.get(b).y) : [id];
  return beside[beside.indexOf(id) + (key === "ArrowUp" ? -1 : 1)] ?? id;
}

function listen(view) {
  view.canvas.addEventListener("pointermove", event => {
    const id = nodeAt(view, event);
    if (event.pointerType !== "touch" && id !== view.at) pick(view, id);
  });
  view.canvas.addEventListener("click", event => pick(view, nodeAt(view, event)));
  view.canvas.addEventListener("dblclick", event => view.read(view.shape.nodes.get(nodeAt(view, event)).leaves));
  view.canvas.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = stepFrom(view.shape, view.at, event.key);
    if (event.key === "Enter") view.read(view.shape.nodes.get(view.at).leaves);
    else if (to === null) return;
    else { pick(view, to); reveal(view, to); }
    event.preventDefault();
  });
}

function reveal({ box, canvas, shape, told }, id) {
  const top = canvas.offsetTop + shape.nodes.get(id).y - box.scrollTop;
  if (top < told.offsetHeight + ROW || top > box.clientHeight - ROW) box.scrollTop += top - box.clientHeight / 2;
}

function revealEvidence(view) {
  const first = (view.tree.evidence ?? []).map(id => view.shape.nodes.get(id)?.y).filter(y => y !== undefined).sort((a, b) => a - b)[0];
  view.box.scrollTop = first === undefined ? 0 : Math.max(0, first - view.box.clientHeight / 2);
}
