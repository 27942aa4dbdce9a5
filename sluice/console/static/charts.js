// Drawings of numbers: flows from one place to several, bars of rows over time. Each says in words what it shows, too.

import { el, svg } from "./dom.js";
import { number } from "./words.js";

const SERIES = 8;
const LABEL_CHARACTER_PX = 7.9; // of the fonts that are likely, one of the wider

/** The colour of the series with this number, as a value of CSS. */
export function colour(place) {
  return `var(--series-${(place % SERIES) + 1})`;
}

/** How wide a drawing may be, in px: what the page has, less a card's own edges. */
export function room(least = 260) {
  const main = document.getElementById("main");
  const style = getComputedStyle(main);
  const inside = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(least, Math.floor(inside - 2 * 17));
}

/** Has a page drawn anew when the window is another size. */
export function redrawnWhenResized(redraw) {
  let waits = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waits);
    waits = requestAnimationFrame(() => redraw());
  });
}

// How much larger the page's letters are than those that drawings are laid out for.
function zoom() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 15.5;
}

export function shortened(text, characters) {
  const all = [...String(text)];
  return all.length <= characters ? String(text) : `${all.slice(0, Math.max(1, characters - 1)).join("")}…`;
}

/**
 * Flows from one source to targets, each `{name, note, value, colour, dashed, href}`: as thick as they are large. What
 * has nothing is a thin line.
 */
export function sankey({ label, source, targets, width: shownWidth, most = 320 }) {
  const larger = zoom();
  const width = Math.round(shownWidth / larger);
  const narrow = width < 560;
  const barWidth = 12;
  const labelWidth = Math.min(narrow ? width * 0.44 : 300, width / 2);
  const left = 6;
  const right = width - labelWidth - barWidth;
  const rowLeast = 40;
  const gap = 10;
  const total = targets.reduce((sum, each) => sum + (each.dashed ? 0 : each.value ?? 0), 0);
  const largest = Math.max(total, ...targets.map((each) => each.value ?? 0), 1);
  const free = Math.max(most - targets.length * gap, targets.length * 8);
  const thick = (value) => Math.max(value ? 3 : 1.5, ((value ?? 0) / largest) * Math.min(free, 180));
  const rows = targets.map((each) => ({ ...each, thickness: thick(each.value) }));
  let y = 34;
  for (const row of rows) {
    row.height = Math.max(row.thickness, rowLeast);
    row.middle = y + row.height / 2;
    y += row.height + gap;
  }
  const height = y;
  const leaving = rows.reduce((sum, row) => sum + row.thickness, 0);
  const sourceHeight = Math.max(leaving, 24);
  let from = 34 + (height - 34 - gap) / 2 - sourceHeight / 2;
  const sourceTop = from;
  from += (sourceHeight - leaving) / 2;
  const characters = Math.floor((labelWidth - 14) / LABEL_CHARACTER_PX);
  const drawn = rows.map((row) => {
    const start = from + row.thickness / 2;
    from += row.thickness;
    return ribbon(row, { left: left + barWidth, right, start, characters, labelX: right + barWidth + 10, barWidth });
  });
  return el("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, width: shownWidth, height: Math.round(height * larger), role: "group", "aria-label": label },
      svg("text", { x: left, y: 16, class: "chart-title" }, shortened(source.name, Math.floor((width * 0.5) / LABEL_CHARACTER_PX)),
        svg("tspan", { class: "chart-note", dx: 8 }, source.note)),
      drawn,
      svg("rect", { x: left, y: sourceTop, width: barWidth, height: sourceHeight, rx: 3, class: "sankey-source" })));
}

function ribbon(row, { left, right, start, characters, labelX, barWidth }) {
  const half = row.thickness / 2;
  const bend = (left + right) / 2;
  const path = [
    `M${left},${start - half}`, `C${bend},${start - half} ${bend},${row.middle - half} ${right},${row.middle - half}`,
    `L${right},${row.middle + half}`, `C${bend},${row.middle + half} ${bend},${start + half} ${left},${start + half}`, "Z",
  ].join(" ");
  const line = `M${left},${start} C${bend},${start} ${bend},${row.middle} ${right},${row.middle}`;
  const said = `${row.name}: ${row.note}`;
  const parts = [
    svg("title", {}, said),
    row.value && row.thickness > 3
      ? svg("path", { d: path, fill: row.colour, class: row.dashed ? "ribbon copy" : "ribbon", stroke: row.dashed ? row.colour : null })
      : svg("path", { d: line, stroke: row.colour, class: row.value ? "thread" : "thread idle" }),
    svg("rect", { x: right, y: row.middle - Math.max(half, 8), width: barWidth, height: Math.max(row.thickness, 16), rx: 3, fill: row.colour }),
    svg("text", { x: labelX, y: row.middle - 3, class: "chart-label" }, shortened(row.name, characters)),
    svg("text", { x: labelX, y: row.middle + 14, class: "chart-note" }, shortened(row.note, Math.floor(characters * 1.1))),
  ];
  return row.href
    ? svg("a", { href: row.href, "data-key": row.key ?? row.name, class: "chart-link" }, parts)
    : svg("g", { "data-key": row.key ?? row.name }, parts);
}

/** Bars of rows over time. `columns` are `{label, short, value}`; the short label stands below. */
export function bars({ label, columns, width: shownWidth, height }) {
  const larger = zoom();
  const width = Math.round(shownWidth / larger);
  const bottom = 26;
  const top = 12;
  const { steps, most } = scale(Math.max(...columns.map((each) => each.value), 1));
  const left = Math.max(28, ...steps.map((each) => number(each).length * LABEL_CHARACTER_PX + 10));
  const inside = width - left - 4;
  const slot = inside / Math.max(columns.length, 1);
  const bar = Math.max(1, Math.min(slot * 0.72, 48));
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const every = Math.max(1, Math.ceil((columns.length * 74) / inside));
  return el("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, width: shownWidth, height: Math.round(height * larger), role: "img", "aria-label": label },
      steps.map((step) => [
        svg("line", { x1: left, x2: width - 4, y1: y(step), y2: y(step), class: "gridline" }),
        svg("text", { x: left - 8, y: y(step) + 4, class: "chart-note", "text-anchor": "end" }, number(step)),
      ]),
      columns.map(({ label: name, short, value }, place) => {
        const x = left + slot * place + (slot - bar) / 2;
        return svg("g", {},
          svg("title", {}, `${name}: ${number(value)} rows`),
          value ? svg("rect", { x, y: y(value), width: bar, height: Math.max(1, y(0) - y(value)), rx: Math.min(2, bar / 3), fill: colour(0) }) : null,
          place % every === 0 ? svg("text", { x: x + bar / 2, y: height - 8, class: "chart-note", "text-anchor": "middle" }, short) : null);
      })));
}

/** A small square of a colour. */
export function swatch(value) {
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" },
    svg("rect", { width: 10, height: 10, rx: 2, fill: value }));
}

// From nothing up to at least the largest value, in steps that are easily said.
function scale(largest) {
  const rough = largest / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough), 1); // what is drawn is counted
  const steps = [];
  for (let at = 0; at < largest + step; at += step) steps.push(at);
  return { steps, most: steps.at(-1) };
}
