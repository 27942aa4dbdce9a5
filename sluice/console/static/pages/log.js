// What the functions say, as it comes.

import { el } from "../dom.js";
import { pair, section, trouble, troubles } from "../widgets.js";
import { clock, number, traceOf } from "../words.js";

const SHOWN = 200;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const KINDS = { WARNING: "busy", ERROR: "bad", CRITICAL: "bad", INFO: "good" };

function topic({ site, query }) {
  const trace = query.get("trace");
  return `log@${site.number}${trace ? `?trace=${encodeURIComponent(trace)}` : ""}`;
}

export function topics(place) {
  return [topic(place)];
}

export function render(place) {
  const reading = [...place.readings.entries()].find(([name]) => name.startsWith("log@"))?.[1];
  const found = reading?.document;
  return [filters(place, found), trouble(reading), found ? [troubles(found), lines(place, found)] : null];
}

function filters(place, found) {
  const { query } = place;
  const pick = (name) => (event) => place.go({ [name]: event.target.value });
  const choice = (name, label, values) => el("label", { class: "field" }, label,
    el("select", { onchange: pick(name) }, el("option", { value: "" }, "all"),
      values.map((each) => el("option", { value: each, selected: query.get(name) === each }, each))));
  const search = (event) => {
    event.preventDefault();
    place.go({ trace: new FormData(event.target).get("trace").trim() });
  };
  return el("div", { class: "row", "data-key": "filters" },
    choice("function", "Function", found?.functions ?? [query.get("function")].filter(Boolean)),
    choice("level", "Level", LEVELS),
    el("form", { class: "field", role: "search", onsubmit: search },
      el("label", { for: "trace" }, "Trace id, or any word"),
      el("input", { id: "trace", name: "trace", value: query.get("trace") ?? "", maxlength: "200", spellcheck: "false" }),
      el("button", {}, "Find"),
      query.get("trace") ? el("button", { type: "button", onclick: () => { document.getElementById("trace").value = ""; place.go({ trace: null }); } }, "Clear") : null));
}

function lines(place, found) {
  const { query } = place;
  const wanted = found.lines.filter((line) =>
    (!query.get("function") || line.service === query.get("function")) && (!query.get("level") || line.level === query.get("level")));
  const shown = wanted.slice(0, SHOWN);
  return section("Lines",
    el("p", { class: "quiet", role: "status" }, shown.length < wanted.length ? `The last ${number(shown.length)} of ${number(wanted.length)} lines since ${clock(found.since_ms)}.`
      : `${number(wanted.length)} lines since ${clock(found.since_ms)}.`),
    el("ol", { class: "letters lines" }, shown.map((line, place_) => one(place, line, `${line.at_ms} ${line.service} ${wanted.length - place_}`))));
}

function one(place, line, key) {
  const fields = Object.entries(line.fields);
  const head = [
    el("time", { datetime: new Date(line.at_ms).toISOString() }, clock(line.at_ms).slice(11)), " ",
    el("code", {}, line.service), " ", line.level ? el("span", { class: `badge ${KINDS[line.level] ?? "over"}` }, line.level) : null, " ",
    el("span", { class: "said" }, line.event), line.fields.reason ? el("span", { class: "said quiet" }, ` ${line.fields.reason}`) : null,
  ];
  return el("li", { "data-key": key },
    fields.length ? el("details", {}, el("summary", {}, head),
      el("dl", { class: "pairs" }, fields.map(([name, value]) =>
        pair(name, /trace/.test(name) ? el("a", { href: place.href("log", { trace: traceOf(value) }) }, value) : value))))
      : el("div", {}, head));
}
