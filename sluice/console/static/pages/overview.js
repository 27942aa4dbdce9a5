// Every site's four parts as one picture: what goes in and out, what they hold, what died, and what is wrong.

import { el } from "../dom.js";
import { badge, facts, spark, stat, stats, table, trouble, troubles } from "../widgets.js";
import { ago, clock, number } from "../words.js";

const topic = (site) => `overview@${site.number}`;
const PARTS = [
  { name: "rendezvous", title: "Rendezvous", detail: rendezvous,
    goesIn: "Offers in", goesOut: "Answered out" },
  { name: "federation", title: "Federation", detail: federation,
    goesIn: "Published in", goesOut: "Copies out" },
  { name: "splitting", title: "Splitting", detail: splitting,
    goesIn: "Read in", goesOut: "Passed on out" },
  { name: "pipeline", title: "Pipeline", detail: pipeline,
    goesIn: "Queued in", goesOut: "Taken out" },
];

export function topics({ sites }) {
  return sites.map(topic);
}

export function render(place) {
  return [
    el("p", { class: "quiet" }, "In and out are of today, in UTC; waiting, in flight and dead are of now."),
    el("div", { class: "sites", "data-key": "sites" }, place.sites.map((site) => {
      const reading = place.readings.get(topic(site));
      return el("section", { class: "site", "data-key": site.name, "aria-label": `Site ${site.name}` },
        el("h2", {}, site.name),
        trouble(reading),
        reading?.document ? whole(reading.document, place, site) : null);
    })),
  ];
}

function whole(found, place, site) {
  return [
    alarms(found),
    el("div", { class: "flow", "data-key": "flow" }, PARTS.map((part, at) => [
      at ? el("span", { class: "arrow", "aria-hidden": "true", "data-key": `to ${part.name}` }) : null,
      card(part, found, place, site),
    ])),
    el("div", { class: "cards", "data-key": "beside" }, changes(found, site)),
    troubles(found),
  ];
}

function card({ name, title, detail, goesIn, goesOut }, found, place, site) {
  const part = found.status[name];
  const counters = found.counters[name];
  const holds = found.holds[name];
  const heading = el("h3", {}, el("a", { href: place.href(name, { site: site.name }) }, title));
  const absent = found.status.absent?.[name];
  const failed = found.status.failed?.[name];
  return el("article", { class: "card part", "data-key": name, "data-part": name, "aria-label": title },
    heading,
    absent ? el("p", { class: "quiet" }, absent) : null,
    failed ? el("p", { class: "error", role: "alert" }, failed) : null,
    part ? [
      stats(
        stat(goesIn, counters?.in ?? null, { name: "in" }), stat(goesOut, counters?.out ?? null, { name: "out" }),
        stat("Waiting", holds?.waiting, { name: "waiting" }),
        stat("In flight", holds?.in_flight, { name: "in-flight" }),
        stat("Dead", holds?.dead, { name: "dead", kind: holds?.dead ? "bad" : "" })),
      counters?.minutes?.in ? spark("The last hour, minute by minute", [
        { name: goesIn, values: counters.minutes.in, kind: "in" }, { name: goesOut, values: counters.minutes.out, kind: "out" }]) : null,
      detail(part, counters, found),
    ] : null);
}

function rendezvous(part, counters) {
  const waiting = Object.entries(part.waiting_proxies).map(([pool, count]) => `${number(count)} ${pool}`).join(", ");
  return facts(["proxies", waiting], ["denied", counters?.denied ?? null], ["timed out", counters?.timed_out ?? null], ["open now", counters?.open ?? null]);
}

function federation(part, counters) {
  const down = part.routes.filter((route) => route.state !== "Operational").length;
  return [
    facts(["exchanges", part.exchanges.length], ["bindings", part.bindings], ["forwarded", counters?.forwarded ?? null],
      ["routes", part.routes.length], down ? ["not operational", down] : null),
    el("ul", { class: "states" }, part.links.map((link) => el("li", { "data-key": link.name }, link.peer, " ", badge(link.state)))),
  ];
}

function splitting(part, counters) {
  const held = part.queues.map((queue) => queue.main.visible);
  const main = held.includes(null) ? null : held.reduce((all, each) => all + each, 0);
  return facts(["to sessions", counters?.to_sessions ?? null], ["to main", counters?.to_main ?? null], ["mirrored", counters?.mirrored ?? null],
    ["queues", part.queues.length], ["sessions", part.sessions.length], ["waiting in main", main]);
}

function pipeline(part) {
  const running = part.runs.filter((run) => run.state.toLowerCase() === "running").length;
  return [facts(["runs", part.runs.length], ["running", running]), el("p", {}, "land should be ", badge(part.wanted))];
}

function alarms(found) {
  if (!found.alarms?.length) return null;
  return el("div", { class: "error alarms", role: "alert", "data-key": "alarms" },
    el("strong", {}, `${number(found.alarms.length)} ${found.alarms.length === 1 ? "alarm" : "alarms"}`),
    el("ul", {}, found.alarms.map((alarm) =>
      el("li", { "data-key": alarm.name }, el("strong", {}, alarm.name), `, ${ago(alarm.since_ms)}: ${alarm.about}`))));
}

function changes(found, site) {
  return el("section", { class: "card", "data-key": "changes", "aria-label": `What changed in the last hour at ${site.name}` },
    el("h3", {}, "What changed in the last hour"),
    table("What changed in the last hour", [{ name: "When" }, { name: "Part" }, { name: "What" }],
      found.changes.map((each) => [el("time", { datetime: new Date(each.at_ms).toISOString() }, clock(each.at_ms).slice(11)), each.part.replace("_", " "), each.what]),),
    el("p", { class: "quiet" }, found.alarms_watched === null ? "" : `${number(found.alarms_watched)} alarms watch this site; ${number(found.alarms?.length ?? 0)} are on.`));
}
