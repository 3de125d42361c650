/* What every room of the page draws with. Texts of documents and models are text, never markup. */

export const $ = id => document.getElementById(id);

export function element(tag, text, parent, className) {
  const made = document.createElement(tag);
  made.textContent = text ?? "";
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

export function button(text, parent, act, className) {
  const made = element("button", text, parent, className);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export function drawing(tag, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent?.append(made);
  return made;
}

export const counted = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
export const listed = facts => facts.filter(Boolean).join(" · ");

/** From offsets in Unicode code points, as the server counts, to offsets in this text as JavaScript counts. */
export function ruler(text) {
  if (!/[\ud800-\udfff]/.test(text)) return point => Math.min(point, text.length);
  const places = [];
  let at = 0;
  for (const character of text) { places.push(at); at += character.length; }
  return point => places[point] ?? text.length;
}

/** Leaves 3, 4, 5, 9 as "3–5, 9". */
export function ranges(leaves) {
  const runs = [];
  for (const leaf of leaves) {
    const run = runs.at(-1);
    if (run && leaf === run[1] + 1) run[1] = leaf; else runs.push([leaf, leaf]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}
