// The pipeline: landed messages by minute, and runs.

import { drawBarChart, measureRoom, redrawOnResize } from "../charts.js";
import { el } from "../dom.js";
import { act } from "../stream.js";
import { definePage, drawAge, drawBadge, drawSection, drawStat, drawStats, drawTable, drawTroubles } from "../widgets.js";
import { formatMilliseconds, formatNumber, formatTime } from "../words.js";

const state = { place: null };
redrawOnResize(() => state.place?.redraw());

export const { topics, render } = definePage("pipeline", drawPage);

function drawPage(place, found) {
  state.place = place;
  return [drawTroubles(found), drawLanding(place, found), drawRuns(place, found)];
}

// Landing

function drawLanding(place, found) {
  const minutes = found.minutes ?? [];
  const lately = minutes.slice(-6, -1);
  const mean = lately.length ? Math.round(lately.reduce((sum, minute) => sum + minute.messages, 0) / lately.length) : null;
  return drawSection("Landing",
    el("p", {}, "The stream should be ", drawBadge(found.wanted), found.since ? el("span", { class: "quiet" }, ` since ${found.since}`) : null,
      found.application ? el("span", { class: "quiet" }, ` · ${found.application}`) : null),
    drawStats(drawStat("Waiting", found.queue.visible), drawStat("In flight", found.queue.in_flight),
      drawStat("Landed a minute", mean)),
    minutes.length ? drawPlot("Messages landed per minute", minutes) : null,
    place.actions
      ? el("div", { class: "row" },
          drawButton("Start", () => runAction(place, "start-job", { job: "land" })), drawButton("Drain", () => runAction(place, "drain-queue", {})),
          drawButton("Stop", () => runAction(place, "stop-job", { job: "land" }), "danger"), drawButton("Compact", () => runAction(place, "start-job", { job: "compact" })),
          el("label", { class: "field" }, "Day ", el("input", { type: "text", id: "statistics-day", size: "12", placeholder: "yesterday" })),
          drawButton("Statistics of the day", () => runAction(place, "start-job", { job: "statistics", day: document.getElementById("statistics-day").value.trim() })))
      : null);
}

function drawPlot(title, minutes) {
  const columns = minutes.map((minute) => ({ label: formatTime(minute.at_ms), short: formatTime(minute.at_ms).slice(11, 16), value: minute.messages }));
  return el("div", { "data-key": title }, el("h3", {}, title),
    drawBarChart({ label: `${title}; the last is ${formatNumber(minutes.at(-1).messages)}`, columns, width: measureRoom(), height: 180 }));
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
