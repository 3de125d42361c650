/* What this browser keeps: past questions and the theme for good, the key until the tab is closed; traces as files. */
import { $, button, element, listed } from "./paper.js";
import { Problem, useKey } from "./wire.js";

const ENTRIES = 60, ROOM = 1_500_000; // questions; characters of all of them with their traces
const FORMAT = 1; // of traces, as sproutrag/qa/trace.py writes them
const THEMES = ["auto", "light", "dark"];

function kept(store, name, otherwise) {
  try { return JSON.parse(store.getItem(`sproutrag.${name}`)) ?? otherwise; } catch { return otherwise; }
}
function keep(store, name, value) {
  try { store.setItem(`sproutrag.${name}`, JSON.stringify(value)); return true; } catch { return false; }
}

/* history */
/** Newest first; the oldest lose their traces, then go. */
export function remember(entry) {
  const entries = [entry, ...kept(localStorage, "history", [])].slice(0, ENTRIES);
  for (let i = entries.length - 1; i > 0 && JSON.stringify(entries).length > ROOM; i--) delete entries[i].told;
  if (entries.length && JSON.stringify(entries).length > ROOM) delete entries[0].told;
  while (entries.length && !keep(localStorage, "history", entries)) entries.pop();
}

function writePast(reopen) {
  const entries = kept(localStorage, "history", []), list = $("past");
  list.replaceChildren();
  if (!entries.length) element("li", "Nothing asked yet.", list, "quiet");
  for (const entry of entries) {
    const item = element("li", "", list);
    const open = button("", item, () => { $("history").close(); reopen(entry); }, "entry");
    element("span", entry.question, open, "asked").dir = "auto";
    element("span", listed([new Date(entry.at).toLocaleString(), entry.mode === "search" ? "search" : "", entry.answer ?? ""]), open, "quiet").dir = "auto";
  }
  $("forget").hidden = !entries.length;
}

export function listenToHistory(reopen) {
  $("open-history").addEventListener("click", () => { writePast(reopen); $("history").showModal(); });
  $("forget").addEventListener("click", () => { localStorage.removeItem("sproutrag.history"); writePast(reopen); });
}

/* theme */
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme[0].toUpperCase() + theme.slice(1);
  $("theme").title = $("theme").ariaLabel = `Theme: ${theme}`;
}

export function listenToTheme() {
  let theme = kept(localStorage, "theme", "auto");
  setTheme(theme);
  $("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setTheme(theme);
    keep(localStorage, "theme", theme);
  });
}

/* key */
export function listenToKey(changed) {
  useKey(kept(sessionStorage, "key", ""));
  $("open-key").addEventListener("click", askForKey);
  $("key-form").addEventListener("submit", () => {
    const key = $("key").value.trim();
    keep(sessionStorage, "key", key);
    useKey(key);
    $("key").value = "";
    changed();
  });
  for (const close of document.querySelectorAll("[data-close]")) close.addEventListener("click", () => close.closest("dialog").close());
}

export function askForKey() {
  $("key").value = kept(sessionStorage, "key", "");
  $("key-box").showModal();
}

/* traces as files */
export function saveTrace(told) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(told, null, 1)], { type: "application/json" }));
  const link = element("a", "");
  link.href = url;
  const words = told.question.normalize("NFC").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  link.download = `trace-${[...words].slice(0, 48).join("") || "question"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const NO_TRACE = { title: "This file is no trace", next: "Save one here, or with `sproutrag ask --trace FILE`." };

export async function readTrace(file) {
  let told;
  try { told = JSON.parse(await file.text()); } catch { throw new Problem({ ...NO_TRACE, detail: `${file.name} is not JSON.` }); }
  if (!told?.trace?.root) throw new Problem({ ...NO_TRACE, detail: `${file.name} holds no tree of questions.` });
  if (told.trace.format !== FORMAT) throw new Problem({ ...NO_TRACE, detail: `${file.name} has format ${told.trace.format}; this page reads ${FORMAT}.` });
  return told;
}

export function listenToFiles(open) {
  $("open-file").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const [file] = $("file").files;
    if (file) open(file);
    $("file").value = "";
  });
}
