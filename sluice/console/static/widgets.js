// What several pages show alike.

import { el } from "./dom.js";
import { number } from "./words.js";

/** A part of a page under a heading. */
export function section(title, ...children) {
  return el("section", { class: "card", "data-key": title, "aria-label": title }, el("h2", {}, title), children);
}

/** A number with its name: `kind` is "bad", "good" or nothing. */
export function stat(name, value, { kind = "", title = null } = {}) {
  return el("div", { class: `stat ${kind}`, title }, el("dt", {}, name), el("dd", {}, typeof value === "number" ? number(value) : value));
}

export function stats(...all) {
  return el("dl", { class: "stats" }, all);
}

/** A table that scrolls by itself where it is too wide. Columns are `{name, number}`; a row is a list of cells. */
export function table(caption, columns, rows, { empty = "None.", key = null } = {}) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }, column.name)))),
      el("tbody", {}, rows.map((row, place) =>
        el("tr", { "data-key": key ? key(row, place) : null },
          row.map((cell, at) => el("td", { class: columns[at].number ? "number" : null }, typeof cell === "number" ? number(cell) : cell)))))));
}

const GOOD = new Set(["ready", "operational", "running", "success", "ok", "answered", "matched"]);
const BAD = new Set(["failed", "starterror", "cleanuperror", "stalled", "alarm"]);
const OVER = new Set(["ended", "closed", "cancelled", "paused"]);

/** A state in its colour, and in words. */
export function badge(state) {
  const said = String(state ?? "");
  const folded = said.toLowerCase();
  const kind = GOOD.has(folded) ? "good" : BAD.has(folded) ? "bad" : OVER.has(folded) ? "over" : "busy";
  return el("span", { class: `badge ${kind}` }, said);
}

/** What stands where a reading isn't there yet, or can't be: nothing else on the page is lost by it. */
export function trouble(reading) {
  if (!reading) return el("p", { class: "quiet", "data-key": "trouble", role: "status" }, "Asking…");
  return reading.error ? el("p", { class: "error", "data-key": "trouble", role: "alert" }, reading.error) : null;
}
