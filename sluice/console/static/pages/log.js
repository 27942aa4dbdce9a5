// What the functions say, as it comes; by trace, what one message met on its way.

import { el } from "../dom.js";
import { ask } from "../stream.js";
import { badge, pair, section, table, trouble, troubles } from "../widgets.js";
import { clock, milliseconds, number, traceOf } from "../words.js";

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
  return [filters(place, found), trouble(reading), place.query.get("trace") ? beside(place) : null, found ? [troubles(found), lines(place, found)] : null];
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

// What a trace is of, and what it became: looked for once, and again when somebody asks.

const traced = { key: "", found: null, error: null, looking: false };

async function look(place, key) {
  Object.assign(traced, { key, found: null, error: null, looking: true });
  let found = null, error = null;
  try {
    found = await ask("trace", place.site.number, { trace: place.query.get("trace") });
  } catch (failed) {
    error = failed.message;
  }
  if (traced.key !== key) return; // somebody has asked for another one meanwhile
  Object.assign(traced, { found, error, looking: false });
  place.redraw();
}

function beside(place) {
  const key = `${place.site.name} ${place.query.get("trace")}`;
  if (traced.key !== key) look(place, key);
  const { found, error, looking } = traced;
  return section("Offers and rows of this trace",
    el("div", { class: "row" }, el("button", { type: "button", disabled: looking, onclick: () => { look(place, key); place.redraw(); } }, looking ? "Looking…" : "Look again")),
    error ? el("p", { class: "error", role: "alert" }, error) : null,
    found ? [
      troubles(found),
      table("Offers of this trace", [{ name: "Offered" }, { name: "State" }, { name: "Took", number: true }, { name: "Country" }, { name: "Method" }],
        found.offers.map((offer) => [clock(offer.sent_at_ms), badge(offer.state), milliseconds(offer.answered_ms), offer.country, offer.method]),
        { empty: "No offer of the last minutes has it." }),
      table("Rows of this trace", [{ name: "Date" }, { name: "Exchange" }, { name: "Published" }, { name: "Queued" }, { name: "Taken by Spark" }, { name: "Body" }],
        found.rows.map((row) => [row.date, row.exchange, clock(row.published_at_ms), clock(row.sent_at_ms), clock(row.first_received_at_ms), el("code", {}, row.body)]),
        { empty: "No row that was landed lately has it." }),
    ] : null);
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
