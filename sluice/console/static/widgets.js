// Draws the parts that several pages use.

import { el, svg } from "./dom.js";
import { formatAge, formatNumber, formatTime } from "./words.js";

/** Defines a page with one reading of the site. `drawPage` draws the reading's document when it has arrived. */
export function definePage(name, drawPage) {
  const topic = ({ site }) => `${name}@${site.number}`;
  return {
    topics: (place) => [topic(place)],
    render: (place) => {
      const reading = place.readings.get(topic(place));
      return [drawTrouble(reading), reading?.document ? drawPage(place, reading.document) : null];
    },
  };
}

/** Draws tabs that select what a page shows: entries `{name, note, key, href, current}`. */
export function drawTabs(label, entries) {
  return el("nav", { class: "tabs", "aria-label": label, "data-key": label }, el("ul", {}, entries.map((entry) =>
    el("li", { "data-key": entry.key }, el("a", { href: entry.href, "aria-current": entry.current ? "true" : null },
      el("strong", {}, entry.name), el("span", { class: "quiet" }, ` ${entry.note}`))))));
}

/** Draws how long ago a time was, with the time as a tooltip. */
export function drawAge(atMs) {
  return el("span", { class: "nowrap", title: formatTime(atMs) }, formatAge(atMs));
}

/** Draws a name and its value, in a list of such pairs. */
export function drawPair(name, value) {
  return el("div", { "data-key": name }, el("dt", {}, name), el("dd", {}, value));
}

/** Draws a part of a page under a heading. */
export function drawSection(title, ...children) {
  return el("section", { class: "card", "data-key": title, "aria-label": title }, el("h2", {}, title), children);
}

/** Draws a number with its label; null if it is unknown. `kind` is "bad", "good" or empty; tests find it by `name`. */
export function drawStat(label, value, { kind = "", name = label } = {}) {
  const said = typeof value === "number" || value === null || value === undefined ? formatNumber(value) : value;
  return el("div", { class: `stat ${kind}`, "data-stat": name, "data-key": name }, el("dt", {}, label), el("dd", {}, said));
}

export function drawStats(...stats) {
  return el("dl", { class: "stats" }, stats);
}

/** Draws a table, which scrolls if it is too wide. Columns are `{name, number}`; a row is a list of cells. */
export function drawTable(caption, columns, rows, { empty = "None.", key = null } = {}) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }, column.name)))),
      el("tbody", {}, rows.map((row, place) =>
        el("tr", { "data-key": key ? key(row, place) : null },
          row.map((cell, at) => el("td", { class: columns[at].number ? "number" : null }, typeof cell === "number" ? formatNumber(cell) : cell)))))));
}

const GOOD = new Set(["ready", "operational", "running", "success", "ok", "answered", "matched"]);
const BAD = new Set(["failed", "starterror", "cleanuperror", "alarm", "denied", "timed out", "refused"]);
const OVER = new Set(["ended", "closed", "cancelled", "paused"]);

/** Draws a state as a text on a background of its colour. */
export function drawBadge(state) {
  const said = String(state ?? "");
  const folded = said.toLowerCase();
  const kind = GOOD.has(folded) ? "good" : BAD.has(folded) ? "bad" : OVER.has(folded) ? "over" : "busy";
  return el("span", { class: `badge ${kind}` }, said);
}

/** Draws a placeholder until a reading arrives, or its error if it failed. The rest of the page stays. */
export function drawTrouble(reading) {
  if (!reading) return el("div", { class: "card skeleton", "data-key": "trouble", role: "status" }, el("span", { class: "unseen" }, "Loading…"));
  return reading.error ? el("p", { class: "error", "data-key": "trouble", role: "alert" }, reading.error) : null;
}

const WIDTH = 240, HEIGHT = 44;

/** Draws a number per minute as lines with axes, the latest minute last; null is left out. A label describes the lines in words. */
export function drawSpark(caption, series) {
  const known = (values) => values.filter((value) => value !== null);
  const most = Math.max(1, ...series.flatMap((line) => known(line.values)));
  const said = series.map((line) => `${line.name}: at most ${formatNumber(Math.max(0, ...known(line.values)))}, ${formatNumber(known(line.values).at(-1) ?? null)} at the end`);
  const place = (value, at, all) => `${((at / (all - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`;
  return el("figure", { class: "spark" },
    el("figcaption", { class: "quiet" }, caption, series.map((line) => el("span", { class: `key ${line.kind}` }, line.name))),
    el("div", { class: "plot", "aria-hidden": "true" }, el("span", {}, formatNumber(most)), el("span", {}, "0")),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${caption}. ${said.join("; ")}` },
      [4, HEIGHT - 2].map((y) => svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y, y2: y })),
      series.map((line) => svg("polyline", {
        class: `line ${line.kind}`,
        points: line.values.map((value, at) => (value === null ? null : place(value, at, line.values.length))).filter(Boolean).join(" "),
      }))),
    el("div", { class: "ends", "aria-hidden": "true" }, el("span", {}, `${formatNumber(series[0].values.length)} min ago`), el("span", {}, "now")));
}

/** Draws numbers as bars with names: entries `[name, number]`. */
export function drawBars(caption, entries, { empty = "None today." } = {}) {
  if (!entries.length) return el("p", { class: "quiet" }, empty);
  const most = Math.max(1, ...entries.map(([, value]) => value));
  return el("dl", { class: "bars", "aria-label": caption }, entries.map(([name, value]) =>
    el("div", { "data-key": name },
      el("dt", {}, name),
      el("dd", {},
        svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("rect", { class: "ground", width: 100, height: 8, rx: 2 }), svg("rect", { class: "bar-of", width: ((value / most) * 100).toFixed(2), height: 8, rx: 2 })),
        el("span", { class: "number" }, formatNumber(value))))));
}

/** Draws short facts in a row: pairs of a name and a value, which is null if it is unknown. false is left out. */
export function drawFacts(...pairs) {
  return el("ul", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    el("li", { "data-fact": name, "data-key": name }, el("span", { class: "quiet" }, name), " ", typeof value === "number" || value === null ? formatNumber(value) : value)));
}

/** Draws the data that a page couldn't read, each with the reason, which often is a missing permission. */
export function drawTroubles(found) {
  return Object.entries(found.troubles).map(([what, why]) =>
    el("p", { class: "error", "data-key": `trouble ${what}` }, `${what} can't be read: ${why}`));
}

const PAGE_ROWS = 50;

/**
 * Filters a long list by the text in a search field, and splits it into pages. `textOf` returns an entry's searched text.
 * Returns the entries `shown`, the nodes `find` and `pager`, and `sought` and `from` for links.
 */
export function paginate(place, all, textOf, describeCount) {
  const sought = place.query.get("find") ?? "";
  const fitting = all.filter((entry) => textOf(entry).toLowerCase().includes(sought.toLowerCase()));
  const from = Math.min(Math.max(Number(place.query.get("from")) || 0, 0), Math.max(fitting.length - 1, 0));
  const look = (event) => place.go({ find: event.target.value, from: null }, { replace: true });
  return {
    shown: fitting.slice(from, from + PAGE_ROWS), sought, from,
    find: all.length > 8
      ? el("div", { class: "row", "data-key": "find" }, el("label", { class: "field" }, "Find ", el("input", { type: "search", value: sought, oninput: look })),
          el("span", { class: "quiet", role: "status" }, describeCount(formatNumber(fitting.length))))
      : null,
    pager: drawPager(from, PAGE_ROWS, fitting.length, (to) => place.go({ from: to || null })),
  };
}

/** Draws buttons for the pages of a list; null if it has one page. */
export function drawPager(from, size, all, go) {
  if (all <= size) return null;
  return el("div", { class: "row pager", "data-key": "pager" },
    el("button", { type: "button", disabled: from === 0, onclick: () => go(Math.max(0, from - size)) }, "Previous"),
    el("span", { class: "quiet" }, `${formatNumber(from + 1)} to ${formatNumber(Math.min(from + size, all))} of ${formatNumber(all)}`),
    el("button", { type: "button", disabled: from + size >= all, onclick: () => go(from + size) }, "Next"));
}
