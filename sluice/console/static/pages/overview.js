// Every site's four parts as one picture, and what they hold now.

import { el } from "../dom.js";
import { badge, stat, stats, trouble } from "../widgets.js";

const topic = (site) => `overview@${site.number}`;
const PARTS = [
  { name: "rendezvous", title: "Rendezvous", page: "rendezvous", shown: rendezvous },
  { name: "federation", title: "Federation", page: "federation", shown: federation },
  { name: "splitting", title: "Splitting", page: "splitting", shown: splitting },
  { name: "pipeline", title: "Pipeline", page: "pipeline", shown: pipeline },
];

export function topics({ sites }) {
  return sites.map(topic);
}

export function render(place) {
  return place.sites.map((site) => {
    const reading = place.readings.get(topic(site));
    return el("section", { class: "site", "data-key": site.name, "aria-label": `Site ${site.name}` },
      el("h2", {}, site.name),
      trouble(reading),
      reading?.document ? picture(reading.document) : null);
  });
}

function picture(found) {
  return el("div", { class: "flow" }, PARTS.map((part, place) => [
    place ? el("span", { class: "arrow", "aria-hidden": "true", "data-key": `to ${part.name}` }) : null,
    card(part, found),
  ]));
}

function card({ name, title, shown }, found) {
  const absent = found.absent?.[name];
  const failed = found.failed?.[name];
  return el("article", { class: "card part", "data-key": name, "data-part": name, "aria-label": title },
    el("h3", {}, title),
    absent ? el("p", { class: "quiet" }, absent) : null,
    failed ? el("p", { class: "error", role: "alert" }, failed) : null,
    found[name] ? shown(found[name]) : null);
}

const held = (queues) => queues.reduce((sum, each) => ({
  visible: sum.visible + (each?.visible ?? 0), in_flight: sum.in_flight + (each?.in_flight ?? 0),
}), { visible: 0, in_flight: 0 });

function rendezvous(part) {
  const waiting = Object.values(part.waiting_proxies).reduce((sum, each) => sum + each, 0);
  return stats(
    stat("Waiting", part.offers_queue.visible), stat("In flight", part.offers_queue.in_flight),
    stat("Proxies", waiting), stat("Dead", part.dead_letters.count, { kind: part.dead_letters.count ? "bad" : "" }));
}

function federation(part) {
  const all = held(part.routes.map((route) => route.queue));
  return [
    stats(stat("Waiting", all.visible), stat("In flight", all.in_flight), stat("Exchanges", part.exchanges.length), stat("Bindings", part.bindings)),
    el("ul", { class: "states" }, part.links.map((link) => el("li", { "data-key": link.name }, link.peer, " ", badge(link.state)))),
  ];
}

function splitting(part) {
  const all = held(part.queues.flatMap((queue) => [queue.source, queue.main]));
  return stats(
    stat("Waiting", all.visible), stat("In flight", all.in_flight), stat("Queues", part.queues.length), stat("Sessions", part.sessions.length));
}

function pipeline(part) {
  return [
    stats(stat("Waiting", part.queue.visible), stat("In flight", part.queue.in_flight), stat("Runs", part.runs.length)),
    el("p", {}, "land should be ", badge(part.wanted)),
  ];
}
