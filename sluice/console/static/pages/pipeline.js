// The pipeline: landed rows by minute, runs, versions of the tables, and quarantined messages.

import { drawBarChart, measureRoom, redrawOnResize } from "../charts.js";
import { el } from "../dom.js";
import { act, ask } from "../stream.js";
import { askFor, definePage, drawAge, drawBadge, drawPair, drawSection, drawStat, drawStats, drawTable, drawTabs, drawTroubles } from "../widgets.js";
import { formatBytes, formatMilliseconds, formatNumber, formatTime } from "../words.js";

const SHOWN_VERSIONS = 10;
const TABLES = { messages: "Messages", quarantine: "Quarantine", hourly: "Hourly statistics" };

const state = { of: null, place: null, rows: null, wrong: null, busy: false };
redrawOnResize(() => state.place?.redraw());

export const { topics, render } = definePage("pipeline", drawPage);

function drawPage(place, found) {
  state.place = place;
  if (state.of !== place.site.name) Object.assign(state, { of: place.site.name, rows: null, wrong: null });
  return [drawTroubles(found), drawLanding(place, found), drawRuns(place, found), drawTables(place, found), drawQuarantine(place, found)];
}

// Landing

function drawLanding(place, found) {
  const minutes = found.minutes ?? [];
  const lately = minutes.slice(-6, -1);
  const computeMean = (name) => (lately.length ? lately.reduce((sum, minute) => sum + minute[name], 0) / lately.length : null);
  return drawSection("Landing",
    el("p", {}, "The stream should be ", drawBadge(found.wanted), found.since ? el("span", { class: "quiet" }, ` since ${found.since}`) : null,
      found.application ? el("span", { class: "quiet" }, ` · ${found.application}`) : null),
    drawStats(drawStat("Waiting", found.queue.visible), drawStat("In flight", found.queue.in_flight),
      drawStat("Rows a minute", computeMean("rows") === null ? null : Math.round(computeMean("rows"))), drawStat("Batches a minute", computeMean("batches") === null ? null : Math.round(computeMean("batches") * 10) / 10),
      drawStat("Quarantined", found.tables?.quarantine?.rows ?? null, { kind: found.tables?.quarantine?.rows ? "bad" : "" })),
    minutes.length ? drawPlot("Rows landed per minute", minutes) : null,
    place.actions
      ? el("div", { class: "row" },
          drawButton("Start", () => runAction(place, "start-job", { job: "land" })), drawButton("Drain", () => runAction(place, "drain-queue", {})),
          drawButton("Stop", () => runAction(place, "stop-job", { job: "land" }), "danger"), drawButton("Compact", () => runAction(place, "start-job", { job: "compact" })),
          el("label", { class: "field" }, "Day ", el("input", { type: "text", id: "statistics-day", size: "12", placeholder: "yesterday" })),
          drawButton("Statistics of the day", () => runAction(place, "start-job", { job: "statistics", day: document.getElementById("statistics-day").value.trim() })))
      : null);
}

function drawPlot(title, minutes) {
  const columns = minutes.map((minute) => ({ label: formatTime(minute.at_ms), short: formatTime(minute.at_ms).slice(11, 16), value: minute.rows }));
  return el("div", { "data-key": title }, el("h3", {}, title),
    drawBarChart({ label: `${title}; the last is ${formatNumber(minutes.at(-1).rows)}`, columns, width: measureRoom(), height: 180 }));
}

function drawButton(title, onclick, kind = "") {
  return el("button", { type: "button", class: kind, onclick }, title);
}

function runAction(place, action, fields) {
  place.report(act(action, place.site.number, fields), (done) =>
    `${done.job}: ${done.step}${done.run ? `, ${done.run}` : ""}${done.reason ? `: ${done.reason}` : ""}`);
}

// Runs

function drawRuns(place, found) {
  const columns = [{ name: "Job" }, { name: "State" }, { name: "Started" }, { name: "Duration", number: true }, { name: "Slot" }, { name: "Version" }, { name: "Detail" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.runs.map((run) => [
    el("strong", {}, run.job), drawBadge(run.state), drawAge(run.started_at_ms),
    formatMilliseconds((run.ended_at_ms ?? Date.now()) - run.started_at_ms), run.slot || "–", el("code", {}, run.digest), run.detail || "–",
    ...(place.actions ? [isLive(run) ? el("button", { type: "button", class: "small", "aria-label": `Stop ${run.job} ${run.run}`, onclick: () => runAction(place, "stop-job", { job: run.job }) }, "Stop") : "–"] : []),
  ]);
  return drawSection("Runs", drawTable("Runs", columns, rows, { empty: "No job has run.", key: (_, at) => found.runs[at].run }));
}

function isLive(run) {
  return !["SUCCESS", "FAILED", "CANCELLED", "CANCELLING"].includes(run.state);
}

// Tables

function drawTables(place, found) {
  if (!found.tables) return null;
  const chosen = Object.hasOwn(found.tables, place.query.get("table")) ? place.query.get("table") : "messages";
  const shown = found.tables[chosen];
  const columns = [{ name: "Version", number: true }, { name: "Written" }, { name: "Operation" }, { name: "Batch", number: true }, { name: "Rows", number: true }, { name: "Files", number: true }, { name: "Files removed", number: true }, { name: "Size", number: true }];
  const written = shown.versions.filter((version) => !version.removed_files); // versions that remove files only rewrite rows
  const listed = shown.versions.slice(0, SHOWN_VERSIONS);
  const rows = listed.map((version) => [version.version, drawAge(version.at_ms), version.operation, version.batch ?? "–", version.rows, version.files, version.removed_files, formatBytes(version.size)]);
  return drawSection("Tables",
    drawTabs("Tables", Object.entries(found.tables).map(([name, entry]) => ({
      key: name, name: TABLES[name] ?? name, href: place.buildHref("pipeline", { table: name }), current: name === chosen,
      note: entry.rows === null ? `version ${formatNumber(entry.versions[0]?.version)}` : `${formatNumber(entry.rows)} rows`,
    }))),
    written.length > 1
      ? drawBarChart({ label: `Rows of the newest versions of ${chosen}`, width: measureRoom(), height: 130,
          columns: [...written].reverse().map((version) => ({ label: `version ${version.version}`, short: formatNumber(version.version), value: version.rows })) })
      : null,
    drawTable("Versions", columns, rows, { empty: "Nothing has been written yet.", key: (_, at) => String(listed[at].version) }));
}

// Quarantine

function drawQuarantine(place, found) {
  const many = found.tables?.quarantine?.rows;
  return drawSection("Quarantine",
    el("p", {}, "Messages that couldn't be landed, with the reasons. Addresses and session descriptions are masked.", many ? ` There are ${formatNumber(many)}.` : ""),
    el("div", { class: "row" }, el("button", { type: "button", disabled: state.busy, onclick: () => readQuarantine(place) }, state.busy ? "Reading…" : "Read the newest")),
    state.wrong ? el("p", { class: "error", role: "alert" }, state.wrong) : null,
    state.rows && !state.rows.rows.length ? el("p", { class: "quiet", role: "status" }, "It is empty.") : null,
    state.rows?.rows.length
      ? [el("ul", { class: "letters", "aria-label": "Quarantined messages" }, state.rows.rows.map((message) => el("li", { "data-key": message.message_id },
          el("details", {}, el("summary", {}, el("strong", {}, message.reason), " ", el("span", { class: "quiet" }, `${formatTime(message.sent_at_ms)} · ${message.message_id}`)),
            el("pre", { tabindex: "0" }, message.body, message.left_out ? `\n… and ${formatNumber(message.left_out)} characters more` : ""),
            el("dl", { class: "pairs" }, Object.entries(message.attributes).map(([name, value]) => drawPair(name, value))))))),
        state.rows.more > 0 ? el("p", { class: "quiet" }, `${formatNumber(state.rows.more)} older messages are in the table.`) : null]
      : null);
}

function readQuarantine(place) {
  return askFor(place, state, "rows", () => ask("quarantine", place.site.number, {}));
}
