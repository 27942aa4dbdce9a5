// The pipeline: how landing goes, runs, what is in the tables, and what couldn't be landed.

import { bars, redrawnWhenResized, room } from "../charts.js";
import { el } from "../dom.js";
import { act, ask } from "../stream.js";
import { asking, badge, ofReading, pair, section, since, stat, stats, table, tabs, troubles } from "../widgets.js";
import { bytes, clock, milliseconds, number } from "../words.js";

const A_TABLE = 10; // versions in the list
const TABLES = { messages: "Messages", quarantine: "Quarantine", hourly: "Hourly statistics" };

const state = { of: null, place: null, rows: null, wrong: null, busy: false };
redrawnWhenResized(() => state.place?.redraw());

export const { topics, render } = ofReading("pipeline", whole);

function whole(place, found) {
  state.place = place;
  if (state.of !== place.site.name) Object.assign(state, { of: place.site.name, rows: null, wrong: null });
  return [troubles(found), landing(place, found), runs(place, found), tables(place, found), quarantine(place, found)];
}

// How landing goes

function landing(place, found) {
  const minutes = found.minutes ?? [];
  const lately = minutes.slice(-6, -1);
  const mean = (name) => (lately.length ? lately.reduce((sum, each) => sum + each[name], 0) / lately.length : null);
  return section("Landing",
    el("p", {}, "The stream should be ", badge(found.wanted), found.since ? el("span", { class: "quiet" }, ` since ${found.since}`) : null,
      found.application ? el("span", { class: "quiet" }, ` · ${found.application}`) : null),
    stats(stat("Waiting", found.queue.visible), stat("In flight", found.queue.in_flight),
      stat("Rows a minute", mean("rows") === null ? null : Math.round(mean("rows"))), stat("Batches a minute", mean("batches") === null ? null : Math.round(mean("batches") * 10) / 10),
      stat("Quarantined", found.tables?.quarantine?.rows ?? null, { kind: found.tables?.quarantine?.rows ? "bad" : "" })),
    minutes.length ? plot("Rows landed, a minute", minutes) : null,
    place.actions
      ? el("div", { class: "row" },
          button("Start", () => told(place, "start-job", { job: "land" })), button("Drain", () => told(place, "drain-queue", {})),
          button("Stop", () => told(place, "stop-job", { job: "land" }), "danger"), button("Compact", () => told(place, "start-job", { job: "compact" })),
          el("label", { class: "field" }, "Day ", el("input", { type: "text", id: "statistics-day", size: "12", placeholder: "yesterday" })),
          button("Statistics of the day", () => told(place, "start-job", { job: "statistics", day: document.getElementById("statistics-day").value.trim() })))
      : null);
}

function plot(title, minutes) {
  const columns = minutes.map((each) => ({ label: clock(each.at_ms), short: clock(each.at_ms).slice(11, 16), value: each.rows }));
  return el("div", { "data-key": title }, el("h3", {}, title),
    bars({ label: `${title}; the last is ${number(minutes.at(-1).rows)}`, columns, width: room(), height: 180 }));
}

function button(title, onclick, kind = "") {
  return el("button", { type: "button", class: kind, onclick }, title);
}

function told(place, action, fields) {
  place.done(act(action, place.site.number, fields), (done) =>
    `${done.job}: ${done.step}${done.run ? `, ${done.run}` : ""}${done.reason ? `: ${done.reason}` : ""}`);
}

// Runs

function runs(place, found) {
  const columns = [{ name: "Job" }, { name: "State" }, { name: "Began" }, { name: "Took", number: true }, { name: "Which" }, { name: "Version" }, { name: "Says" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.runs.map((each) => [
    el("strong", {}, each.job), badge(each.state), since(each.started_at_ms),
    milliseconds((each.ended_at_ms ?? Date.now()) - each.started_at_ms), each.slot || "–", el("code", {}, each.digest), each.detail || "–",
    ...(place.actions ? [isLive(each) ? el("button", { type: "button", class: "small", "aria-label": `Stop ${each.job} ${each.run}`, onclick: () => told(place, "stop-job", { job: each.job }) }, "Stop") : "–"] : []),
  ]);
  return section("Runs", table("Runs", columns, rows, { empty: "No job has run.", key: (_, at) => found.runs[at].run }));
}

function isLive(run) {
  return !["SUCCESS", "FAILED", "CANCELLED", "CANCELLING"].includes(run.state);
}

// Tables

function tables(place, found) {
  if (!found.tables) return null;
  const chosen = Object.hasOwn(found.tables, place.query.get("table")) ? place.query.get("table") : "messages";
  const shown = found.tables[chosen];
  const columns = [{ name: "Version", number: true }, { name: "When" }, { name: "What" }, { name: "Batch", number: true }, { name: "Rows", number: true }, { name: "Files", number: true }, { name: "Files removed", number: true }, { name: "Size", number: true }];
  const written = shown.versions.filter((each) => !each.removed_files); // the others have rows that were there
  const listed = shown.versions.slice(0, A_TABLE);
  const rows = listed.map((each) => [each.version, since(each.at_ms), each.operation, each.batch ?? "–", each.rows, each.files, each.removed_files, bytes(each.size)]);
  return section("Tables",
    tabs("Tables", Object.entries(found.tables).map(([name, each]) => ({
      key: name, name: TABLES[name] ?? name, href: place.href("pipeline", { table: name }), current: name === chosen,
      note: each.rows === null ? `version ${number(each.versions[0]?.version)}` : `${number(each.rows)} rows`,
    }))),
    written.length > 1
      ? bars({ label: `Rows of the newest versions of ${chosen}`, width: room(), height: 130,
          columns: [...written].reverse().map((each) => ({ label: `version ${each.version}`, short: number(each.version), value: each.rows })) })
      : null,
    table("Versions", columns, rows, { empty: "Nothing has been written yet.", key: (_, at) => String(listed[at].version) }));
}

// Quarantine

function quarantine(place, found) {
  const many = found.tables?.quarantine?.rows;
  return section("Quarantine",
    el("p", {}, "What couldn't be landed, with the reason. Addresses and session descriptions aren't shown.", many ? ` It has ${number(many)}.` : ""),
    el("div", { class: "row" }, el("button", { type: "button", disabled: state.busy, onclick: () => look(place) }, state.busy ? "Reading…" : "Look at the newest")),
    state.wrong ? el("p", { class: "error", role: "alert" }, state.wrong) : null,
    state.rows && !state.rows.rows.length ? el("p", { class: "quiet", role: "status" }, "It is empty.") : null,
    state.rows?.rows.length
      ? [el("ul", { class: "letters", "aria-label": "Quarantined messages" }, state.rows.rows.map((each) => el("li", { "data-key": each.message_id },
          el("details", {}, el("summary", {}, el("strong", {}, each.reason), " ", el("span", { class: "quiet" }, `${clock(each.sent_at_ms)} · ${each.message_id}`)),
            el("pre", { tabindex: "0" }, each.body, each.left_out ? `\n… and ${number(each.left_out)} characters more` : ""),
            el("dl", { class: "pairs" }, Object.entries(each.attributes).map(([name, value]) => pair(name, value))))))),
        state.rows.more > 0 ? el("p", { class: "quiet" }, `${number(state.rows.more)} older ones are in the table.`) : null]
      : null);
}

function look(place) {
  return asking(place, state, "rows", () => ask("quarantine", place.site.number, {}));
}
