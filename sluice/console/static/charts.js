// Draws charts: flows from a source to targets, and bars over time. Labels describe each chart in words, too.

import { el, svg } from "./dom.js";
import { formatNumber } from "./words.js";

const SERIES = 8;
const LABEL_CHARACTER_PX = 7.9; // the width of a character in one of the wider common fonts

/** Returns the CSS colour of the series with this number. */
export function pickColour(number) {
  return `var(--series-${(number % SERIES) + 1})`;
}

/** Returns the width in px that a drawing may have: the page's width without the edges of a section. */
export function measureRoom(least = 260) {
  const main = document.getElementById("main");
  const style = getComputedStyle(main);
  const inside = main.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(least, Math.floor(inside - 2 * 17));
}

/** Redraws a page when the window's size changes. */
export function redrawOnResize(redraw) {
  let waits = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waits);
    waits = requestAnimationFrame(() => redraw());
  });
}

// Returns the ratio of the page's font size to the font size for which charts are laid out.
function measureZoom() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 15.5;
}

export function shorten(text, characters) {
  const all = [...String(text)];
  return all.length <= characters ? String(text) : `${all.slice(0, Math.max(1, characters - 1)).join("")}…`;
}

/**
 * Draws flows from one source to targets `{name, note, value, colour, dashed, href}`. A flow's thickness is in proportion
 * to its value; a flow without messages is a thin line.
 */
export function drawSankey({ label, source, targets, width: shownWidth, most = 320 }) {
  const larger = measureZoom();
  const width = Math.round(shownWidth / larger);
  const narrow = width < 560;
  const barWidth = 12;
  const labelWidth = Math.min(narrow ? width * 0.44 : 300, width / 2);
  const left = 6;
  const right = width - labelWidth - barWidth;
  const rowLeast = 40;
  const gap = 10;
  const total = targets.reduce((sum, target) => sum + (target.dashed ? 0 : target.value ?? 0), 0);
  const largest = Math.max(total, ...targets.map((target) => target.value ?? 0), 1);
  const free = Math.max(most - targets.length * gap, targets.length * 8);
  const scaleThickness = (value) => Math.max(value ? 3 : 1.5, ((value ?? 0) / largest) * Math.min(free, 180));
  const rows = targets.map((target) => ({ ...target, thickness: scaleThickness(target.value) }));
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
    return drawRibbon(row, { left: left + barWidth, right, start, characters, labelX: right + barWidth + 10, barWidth });
  });
  return el("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, width: shownWidth, height: Math.round(height * larger), role: "group", "aria-label": label },
      svg("text", { x: left, y: 16, class: "chart-title" }, shorten(source.name, Math.floor((width * 0.5) / LABEL_CHARACTER_PX)),
        svg("tspan", { class: "chart-note", dx: 8 }, source.note)),
      drawn,
      svg("rect", { x: left, y: sourceTop, width: barWidth, height: sourceHeight, rx: 3, class: "sankey-source" })));
}

function drawRibbon(row, { left, right, start, characters, labelX, barWidth }) {
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
    svg("text", { x: labelX, y: row.middle - 3, class: "chart-label" }, shorten(row.name, characters)),
    svg("text", { x: labelX, y: row.middle + 14, class: "chart-note" }, shorten(row.note, Math.floor(characters * 1.1))),
  ];
  return row.href
    ? svg("a", { href: row.href, "data-key": row.key ?? row.name, class: "chart-link" }, parts)
    : svg("g", { "data-key": row.key ?? row.name }, parts);
}

/** Draws bars of rows over time. `columns` are `{label, short, value}`; `short` is the label below the bar. */
export function drawBarChart({ label, columns, width: shownWidth, height }) {
  const larger = measureZoom();
  const width = Math.round(shownWidth / larger);
  const bottom = 26;
  const top = 12;
  const { steps, most } = computeScale(Math.max(...columns.map((column) => column.value), 1));
  const left = Math.max(28, ...steps.map((step) => formatNumber(step).length * LABEL_CHARACTER_PX + 10));
  const inside = width - left - 4;
  const slot = inside / Math.max(columns.length, 1);
  const bar = Math.max(1, Math.min(slot * 0.72, 48));
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const every = Math.max(1, Math.ceil((columns.length * 74) / inside));
  return el("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, width: shownWidth, height: Math.round(height * larger), role: "img", "aria-label": label },
      steps.map((step) => [
        svg("line", { x1: left, x2: width - 4, y1: y(step), y2: y(step), class: "gridline" }),
        svg("text", { x: left - 8, y: y(step) + 4, class: "chart-note", "text-anchor": "end" }, formatNumber(step)),
      ]),
      columns.map(({ label: name, short, value }, place) => {
        const x = left + slot * place + (slot - bar) / 2;
        return svg("g", {},
          svg("title", {}, `${name}: ${formatNumber(value)} rows`),
          value ? svg("rect", { x, y: y(value), width: bar, height: Math.max(1, y(0) - y(value)), rx: Math.min(2, bar / 3), fill: pickColour(0) }) : null,
          place % every === 0 ? svg("text", { x: x + bar / 2, y: height - 8, class: "chart-note", "text-anchor": "middle" }, short) : null);
      })));
}

/** Draws a small square of a colour. */
export function drawSwatch(value) {
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" },
    svg("rect", { width: 10, height: 10, rx: 2, fill: value }));
}

// Returns an axis from zero to at least the largest value, in steps of 1, 2 or 5 times a power of ten.
function computeScale(largest) {
  const rough = largest / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough), 1); // counts need no fractions
  const steps = [];
  for (let at = 0; at < largest + step; at += step) steps.push(at);
  return { steps, most: steps.at(-1) };
}
