// What several pages show alike.

import { el, svg } from "./dom.js";
import { ago, clock, number } from "./words.js";

/** A page of one reading of the site: what it follows, and `whole`, which shows the document once it is there. */
export function ofReading(name, whole) {
  const topic = ({ site }) => `${name}@${site.number}`;
  return {
    topics: (place) => [topic(place)],
    render: (place) => {
      const reading = place.readings.get(topic(place));
      return [trouble(reading), reading?.document ? whole(place, reading.document) : null];
    },
  };
}

/** A choice of what a page shows: entries `{name, note, key, href, current}`. */
export function tabs(label, entries) {
  return el("nav", { class: "tabs", "aria-label": label, "data-key": label }, el("ul", {}, entries.map((each) =>
    el("li", { "data-key": each.key }, el("a", { href: each.href, "aria-current": each.current ? "true" : null },
      el("strong", {}, each.name), el("span", { class: "quiet" }, ` ${each.note}`))))));
}

/** Says how long ago, and when if one points at it. */
export function since(atMs) {
  return el("span", { class: "nowrap", title: clock(atMs) }, ago(atMs));
}

/** A name and what it stands for, in a list of such pairs. */
export function pair(name, value) {
  return el("div", { "data-key": name }, el("dt", {}, name), el("dd", {}, value));
}

/** A part of a page under a heading. */
export function section(title, ...children) {
  return el("section", { class: "card", "data-key": title, "aria-label": title }, el("h2", {}, title), children);
}

/** A number with its label, null where it isn't known: `kind` is "bad", "good" or nothing, `name` what tests find it by. */
export function stat(label, value, { kind = "", name = label } = {}) {
  const said = typeof value === "number" || value === null || value === undefined ? number(value) : value;
  return el("div", { class: `stat ${kind}`, "data-stat": name, "data-key": name }, el("dt", {}, label), el("dd", {}, said));
}

export function stats(...all) {
  return el("dl", { class: "stats" }, all);
}

/** A table that scrolls by itself where it is too wide. Columns are `{name, number}`; a row is a list of cells. */
export function table(caption, columns, rows, { empty = "None.", key = null } = {}) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }, column.name)))),
      el("tbody", {}, rows.map((row, place) =>
        el("tr", { "data-key": key ? key(row, place) : null },
          row.map((cell, at) => el("td", { class: columns[at].number ? "number" : null }, typeof cell === "number" ? number(cell) : cell)))))));
}

const GOOD = new Set(["ready", "operational", "running", "success", "ok", "answered", "matched"]);
const BAD = new Set(["failed", "starterror", "cleanuperror", "alarm", "denied", "timed out", "refused"]);
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

const WIDTH = 240, HEIGHT = 44;

/** Draws series of numbers over each other, the last one now; null is left out. What it shows is said in words, too. */
export function spark(caption, series) {
  const known = (values) => values.filter((each) => each !== null);
  const most = Math.max(1, ...series.flatMap((each) => known(each.values)));
  const said = series.map((each) => `${each.name}: at most ${number(Math.max(0, ...known(each.values)))}, ${number(known(each.values).at(-1) ?? null)} at the end`);
  const place = (value, at, all) => `${((at / (all - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`;
  return el("figure", { class: "spark" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${caption}. ${said.join("; ")}` },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
      series.map((each) => svg("polyline", {
        class: `line ${each.kind}`,
        points: each.values.map((value, at) => (value === null ? null : place(value, at, each.values.length))).filter(Boolean).join(" "),
      }))),
    el("figcaption", { class: "quiet" }, `${caption}; at most ${number(most)}`,
      series.map((each) => el("span", { class: `key ${each.kind}` }, each.name))));
}

/** Numbers as bars, each with its name: entries of `[name, number]`. */
export function bars(caption, entries, { empty = "None today." } = {}) {
  if (!entries.length) return el("p", { class: "quiet" }, empty);
  const most = Math.max(1, ...entries.map(([, value]) => value));
  return el("dl", { class: "bars", "aria-label": caption }, entries.map(([name, value]) =>
    el("div", { "data-key": name },
      el("dt", {}, name),
      el("dd", {},
        svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
          svg("rect", { class: "ground", width: 100, height: 8, rx: 2 }), svg("rect", { class: "bar-of", width: ((value / most) * 100).toFixed(2), height: 8, rx: 2 })),
        el("span", { class: "number" }, number(value))))));
}

/** Facts of a few words in a row: pairs of a name and a value; what is null isn't known, and false isn't said. */
export function facts(...pairs) {
  return el("ul", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    el("li", { "data-fact": name, "data-key": name }, el("span", { class: "quiet" }, name), " ", typeof value === "number" || value === null ? number(value) : value)));
}

/** What can't be read of a page, each with the reason: a right that is missing, most of the time. */
export function troubles(found) {
  return Object.entries(found.troubles).map(([what, why]) =>
    el("p", { class: "error", "data-key": `trouble ${what}` }, `${what} can't be read: ${why}`));
}

const A_PAGE = 50; // rows of a long list

/**
 * A long list, of which a page is shown, and what fits what one looks for: `textOf` says what an entry is found by.
 * Gives `shown`, `find` and `pager` as nodes, and `sought`, `from` for addresses.
 */
export function paged(place, all, textOf, told) {
  const sought = place.query.get("find") ?? "";
  const fitting = all.filter((each) => textOf(each).toLowerCase().includes(sought.toLowerCase()));
  const from = Math.min(Math.max(Number(place.query.get("from")) || 0, 0), Math.max(fitting.length - 1, 0));
  const look = (event) => place.go({ find: event.target.value, from: null }, { replace: true });
  return {
    shown: fitting.slice(from, from + A_PAGE), sought, from,
    find: all.length > 8
      ? el("div", { class: "row", "data-key": "find" }, el("label", { class: "field" }, "Find ", el("input", { type: "search", value: sought, oninput: look })),
          el("span", { class: "quiet", role: "status" }, told(number(fitting.length))))
      : null,
    pager: pager(from, A_PAGE, fitting.length, (to) => place.go({ from: to || null })),
  };
}

/** Leads through the pages of a list; nothing where there is one. */
export function pager(from, size, all, go) {
  if (all <= size) return null;
  return el("div", { class: "row pager", "data-key": "pager" },
    el("button", { type: "button", disabled: from === 0, onclick: () => go(Math.max(0, from - size)) }, "Before"),
    el("span", { class: "quiet" }, `${number(from + 1)} to ${number(Math.min(from + size, all))} of ${number(all)}`),
    el("button", { type: "button", disabled: from + size >= all, onclick: () => go(from + size) }, "After"));
}

/** Asks for what a page's `state` has under a name, none where that fails: the state is `busy` meanwhile, or `wrong` then. */
export async function asking(place, state, name, asked) {
  Object.assign(state, { busy: true, wrong: null });
  place.redraw();
  try {
    state[name] = await asked();
  } catch (error) {
    Object.assign(state, { [name]: null, wrong: error.message });
  }
  state.busy = false;
  (state.place ?? place).redraw();
}
