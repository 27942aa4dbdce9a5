// The live log of the site's functions.

import { el } from "../dom.js";
import { drawPair, drawSection, drawTrouble, drawTroubles } from "../widgets.js";
import { formatNumber, formatTime, parseTraceId } from "../words.js";

const SHOWN = 200;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const KINDS = { WARNING: "busy", ERROR: "bad", CRITICAL: "bad", INFO: "good" };

function buildTopic({ site, query }) {
  const trace = query.get("trace");
  return `log@${site.number}${trace ? `?trace=${encodeURIComponent(trace)}` : ""}`;
}

export function topics(place) {
  return [buildTopic(place)];
}

export function render(place) {
  const reading = [...place.readings.entries()].find(([name]) => name.startsWith("log@"))?.[1];
  const found = reading?.document;
  return [drawFilters(place, found), drawTrouble(reading), found ? [drawTroubles(found), drawLines(place, found)] : null];
}

function drawFilters(place, found) {
  const { query } = place;
  const pick = (name) => (event) => place.go({ [name]: event.target.value });
  const drawChoice = (name, label, values) => el("label", { class: "field" }, label,
    el("select", { onchange: pick(name) }, el("option", { value: "" }, "all"),
      values.map((value) => el("option", { value: value, selected: query.get(name) === value }, value))));
  const search = (event) => {
    event.preventDefault();
    place.go({ trace: new FormData(event.target).get("trace").trim() });
  };
  return el("div", { class: "row", "data-key": "filters" },
    drawChoice("function", "Function", found?.functions ?? [query.get("function")].filter(Boolean)),
    drawChoice("level", "Level", LEVELS),
    el("form", { class: "field", role: "search", onsubmit: search },
      el("label", { for: "trace" }, "Trace id, or any word"),
      el("input", { id: "trace", name: "trace", value: query.get("trace") ?? "", maxlength: "200", spellcheck: "false" }),
      el("button", {}, "Find"),
      query.get("trace") ? el("button", { type: "button", onclick: () => { document.getElementById("trace").value = ""; place.go({ trace: null }); } }, "Clear") : null));
}

function drawLines(place, found) {
  const { query } = place;
  const wanted = found.lines.filter((line) =>
    (!query.get("function") || line.service === query.get("function")) && (!query.get("level") || line.level === query.get("level")));
  const shown = wanted.slice(0, SHOWN);
  return drawSection("Lines",
    el("p", { class: "quiet", role: "status" }, shown.length < wanted.length ? `The last ${formatNumber(shown.length)} of ${formatNumber(wanted.length)} lines since ${formatTime(found.since_ms)}.`
      : `${formatNumber(wanted.length)} lines since ${formatTime(found.since_ms)}.`),
    el("ol", { class: "letters lines" }, shown.map((line, at) => drawLine(place, line, `${line.at_ms} ${line.service} ${wanted.length - at}`))));
}

function drawLine(place, line, key) {
  const fields = Object.entries(line.fields);
  const head = [
    el("time", { datetime: new Date(line.at_ms).toISOString() }, formatTime(line.at_ms).slice(11)), " ",
    el("code", {}, line.service), " ", line.level ? el("span", { class: `badge ${KINDS[line.level] ?? "over"}` }, line.level) : null, " ",
    el("span", { class: "said" }, line.event), line.fields.reason ? el("span", { class: "said quiet" }, ` ${line.fields.reason}`) : null,
  ];
  return el("li", { "data-key": key },
    fields.length ? el("details", {}, el("summary", {}, head),
      el("dl", { class: "pairs" }, fields.map(([name, value]) =>
        drawPair(name, /trace/.test(name) ? el("a", { href: place.buildHref("log", { trace: parseTraceId(value) }) }, value) : value))))
      : el("div", {}, head));
}
