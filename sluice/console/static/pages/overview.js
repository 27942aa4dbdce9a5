// Overview of all sites: for each part the messages in and out, waiting, in flight and dead; alarms and changes.

import { el } from "../dom.js";
import { drawBadge, drawFacts, drawSpark, drawStat, drawStats, drawTable, drawTrouble, drawTroubles } from "../widgets.js";
import { formatAge, formatNumber, formatTime } from "../words.js";

const buildTopic = (site) => `overview@${site.number}`;
const PARTS = [
  { name: "rendezvous", title: "Rendezvous", drawDetail: drawRendezvous,
    goesIn: "Offers in", goesOut: "Answers out" },
  { name: "federation", title: "Federation", drawDetail: drawFederation,
    goesIn: "Published in", goesOut: "Copies out" },
  { name: "splitting", title: "Splitting", drawDetail: drawSplitting,
    goesIn: "Read in", goesOut: "Sent out" },
  { name: "pipeline", title: "Pipeline", drawDetail: drawPipeline,
    goesIn: "Queued in", goesOut: "Landed out" },
];

const MINUTES = [60, 30, 10];
const chooseMinutes = (place) => MINUTES.find((minutes) => String(minutes) === place.query.get("minutes")) ?? MINUTES[0];

export function topics({ sites }) {
  return sites.map(buildTopic);
}

export function render(place) {
  return [
    el("div", { class: "row", "data-key": "period" },
      el("span", { class: "quiet" }, "In and out count the messages of today, in UTC. Waiting, in flight and dead are the current numbers."),
      el("label", { class: "field" }, "Charts ",
        el("select", { onchange: (event) => place.go({ minutes: event.target.value }) }, MINUTES.map((minutes) =>
          el("option", { value: minutes, selected: minutes === chooseMinutes(place) }, `last ${minutes} minutes`))))),
    el("div", { class: "sites", "data-key": "sites" }, place.sites.map((site) => {
      const reading = place.readings.get(buildTopic(site));
      return el("section", { class: "site", "data-key": site.name, "aria-label": `Site ${site.name}` },
        el("h2", {}, site.name),
        drawTrouble(reading),
        reading?.document ? drawSite(reading.document, place, site) : null);
    })),
  ];
}

function drawSite(found, place, site) {
  return [
    drawAlarms(found),
    el("div", { class: "flow", "data-key": "flow" }, PARTS.map((part, at) => [
      at ? el("span", { class: "arrow", "aria-hidden": "true", "data-key": `to ${part.name}` }) : null,
      drawPart(part, found, place, site),
    ])),
    el("div", { class: "cards", "data-key": "beside" }, drawChanges(found, site)),
    drawTroubles(found),
  ];
}

function drawPart({ name, title, drawDetail, goesIn, goesOut }, found, place, site) {
  const part = found.status[name];
  const counters = found.counters[name];
  const holds = found.holds[name];
  const last = chooseMinutes(place);
  const heading = el("h3", {}, el("a", { href: place.buildHref(name, { site: site.name }) }, title));
  const absent = found.status.absent?.[name];
  const failed = found.status.failed?.[name];
  return el("article", { class: "card part", "data-key": name, "data-part": name, "aria-label": title },
    heading,
    absent ? el("p", { class: "quiet" }, absent) : null,
    failed ? el("p", { class: "error", role: "alert" }, failed) : null,
    part ? [
      drawStats(
        drawStat(goesIn, counters?.in ?? null, { name: "in" }), drawStat(goesOut, counters?.out ?? null, { name: "out" }),
        drawStat("Waiting", holds?.waiting, { name: "waiting" }),
        drawStat("In flight", holds?.in_flight, { name: "in-flight" }),
        drawStat("Dead", holds?.dead, { name: "dead", kind: holds?.dead ? "bad" : "" })),
      counters?.minutes?.in ? drawSpark("By the minute", [
        { name: goesIn, values: counters.minutes.in.slice(-last), kind: "in" }, { name: goesOut, values: counters.minutes.out.slice(-last), kind: "out" }]) : null,
      drawDetail(part, counters, found),
    ] : null);
}

function drawRendezvous(part, counters) {
  const waiting = Object.entries(part.waiting_proxies).map(([pool, count]) => `${formatNumber(count)} ${pool}`).join(", ");
  return drawFacts(["proxies", waiting], ["denied", counters?.denied ?? null], ["timed out", counters?.timed_out ?? null], ["open now", counters?.open ?? null]);
}

function drawFederation(part, counters) {
  const down = part.routes.filter((route) => route.state !== "Operational").length;
  return [
    drawFacts(["exchanges", part.exchanges.length], ["bindings", part.bindings], ["forwarded", counters?.forwarded ?? null],
      ["routes", part.routes.length], down ? ["not operational", down] : null),
    el("ul", { class: "states" }, part.links.map((link) => el("li", { "data-key": link.name }, link.peer, " ", drawBadge(link.state)))),
  ];
}

function drawSplitting(part, counters) {
  const held = part.queues.map((queue) => queue.main.visible);
  const main = held.includes(null) ? null : held.reduce((all, depth) => all + depth, 0);
  return drawFacts(["to sessions", counters?.to_sessions ?? null], ["to main", counters?.to_main ?? null], ["mirrored", counters?.mirrored ?? null],
    ["queues", part.queues.length], ["sessions", part.sessions.length], ["waiting in main", main]);
}

function drawPipeline(part) {
  const running = part.runs.filter((run) => run.state.toLowerCase() === "running").length;
  return [drawFacts(["runs", part.runs.length], ["running", running]), el("p", {}, "desired state of land: ", drawBadge(part.wanted))];
}

function drawAlarms(found) {
  if (!found.alarms?.length) return null;
  return el("div", { class: "error alarms", role: "alert", "data-key": "alarms" },
    el("strong", {}, `${formatNumber(found.alarms.length)} ${found.alarms.length === 1 ? "alarm" : "alarms"}`),
    el("ul", {}, found.alarms.map((alarm) =>
      el("li", { "data-key": alarm.name }, el("strong", {}, alarm.name), `, ${formatAge(alarm.since_ms)}: ${alarm.about}`))));
}

function drawChanges(found, site) {
  return el("section", { class: "card", "data-key": "changes", "aria-label": `What changed in the last hour at ${site.name}` },
    el("h3", {}, "What changed in the last hour"),
    drawTable("What changed in the last hour", [{ name: "When" }, { name: "Part" }, { name: "What" }],
      found.changes.map((change) => [el("time", { datetime: new Date(change.at_ms).toISOString() }, formatTime(change.at_ms).slice(11)), change.part.replace("_", " "), change.text]),),
    el("p", { class: "quiet" }, found.alarms_watched === null ? "" : `${formatNumber(found.alarms_watched)} alarms watch this site; ${formatNumber(found.alarms?.length ?? 0)} of them on.`));
}
