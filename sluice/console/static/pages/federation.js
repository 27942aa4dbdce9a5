// Federation: all sites on a map, what goes between them, where a message with some key would go, and what is bound here.

import { redrawnWhenResized, room } from "../charts.js";
import { el, svg } from "../dom.js";
import { act, ask } from "../stream.js";
import { asking, badge, paged, section, stat, stats, table, tabs, trouble, troubles } from "../widgets.js";
import { ago, fraction, milliseconds, number } from "../words.js";

const NARROW = "(max-width: 48rem)";
const DASHES = { queue: null, static: null, dynamic: "6 4" };
const WIDTHS = { queue: 3.5, static: 1.75, dynamic: 1.75 };
const STATES = { good: "operational", slow: "stalled", bad: "failed", quiet: "waiting, paused or closing" };
const KINDS = { static: "static route", dynamic: "dynamic route", queue: "queue route" };
const COMMANDS = [["pause", "Pause"], ["resume", "Resume"], ["drain", "Drain"], ["retry", "Retry"]];
const LINE = 17; // px from one line of a label to the next

const state = { exchange: "", key: "", headers: "", found: null, wrong: null, busy: false, of: null, place: null };
// What is narrow follows another topic, so that the address is gone to anew; other pages' windows are none of ours.
redrawnWhenResized(() => location.hash.startsWith("#/federation") && state.place?.go({}, { replace: true }));

const topic = (site) => `federation@${site.number}${matchMedia(NARROW).matches ? "?narrow=1" : ""}`;
const rates = (site) => `route-rates@${site.number}`;

export function topics({ site, sites }) {
  return [topic(site), ...sites.filter((each) => each !== site).map(rates)];
}

export function render(place) {
  state.place = place;
  if (state.of !== place.site.name) Object.assign(state, { of: place.site.name, found: null, wrong: null, exchange: "" });
  const reading = place.readings.get(topic(place.site));
  const found = reading?.document;
  return [trouble(reading), found ? whole(place, found) : null];
}

function whole(place, found) {
  return [
    troubles(found),
    found.warnings.length
      ? section("Warnings", el("ul", { class: "warnings" }, found.warnings.map((each) =>
          el("li", { "data-key": each.text }, el("span", { class: `badge ${each.effect === "lost" ? "bad" : "busy"}` }, each.effect), " ", el("strong", {}, each.concern), ` ${each.text}`))))
      : null,
    mapCard(place, found),
    edgeCard(place, found),
    routes(place, found),
    links(place, found),
    bindings(place, found),
  ];
}

// The map

function mapCard(place, found) {
  const rate = rateOf(place, found);
  const unreached = Object.entries(found.not_reached);
  return section("Map",
    stats(stat("Sites", found.map?.nodes.length ?? null), stat("Routes here", found.routes.length), stat("Exchanges", found.exchanges.length),
      stat("Bindings", found.bindings_number), stat("Warnings", found.warnings.length, { kind: found.warnings.length ? "bad" : "good" })),
    tracer(place, found),
    found.map ? map(place, found.map, rate) : null,
    found.map ? legend(found.map) : null,
    unreached.length
      ? el("details", {}, el("summary", {}, `${number(unreached.length)} not reached`), el("ul", {}, unreached.map(([tag, why]) => el("li", { "data-key": tag }, el("strong", {}, tag), ` ${why}`))))
      : null,
    traced());
}

// By the tag of the source, and a route's name there: messages in the last whole minutes.
function rateOf(place, found) {
  const known = new Map([[found.tag, new Map(found.routes.map((each) => [each.name, each.minutes]))]]);
  for (const [name, reading] of place.readings) {
    if (name.startsWith("route-rates@") && reading.document) known.set(reading.document.tag, new Map(Object.entries(reading.document.routes)));
  }
  return (route) => {
    const minutes = known.get(route.source)?.get(route.declared_at === route.source ? route.name : route.served);
    return minutes ? average(minutes) : null;
  };
}

function average(minutes) {
  const lately = minutes.slice(-5);
  return lately.reduce((sum, each) => sum + each, 0) / lately.length;
}

function map(place, drawn, rate) {
  const wide = room();
  const scale = Math.min(1.5, Math.max(0.72, wide / drawn.width));
  const on = tracedRoutes();
  const arrived = new Set((state.found?.stages ?? []).map((each) => each.site));
  return el("div", { class: "wide map", tabindex: "0", role: "region", "aria-label": "Map of sites" },
    svg("svg", { viewBox: `0 0 ${drawn.width} ${drawn.height}`, width: Math.round(drawn.width * scale), height: Math.round(drawn.height * scale), role: "group", "aria-label": `${drawn.nodes.length} sites, ${drawn.edges.length} lines between them` },
      drawn.edges.map((edge) => line(place, edge, rate, on)),
      drawn.nodes.map((node) => box(node, on ? arrived.has(node.tag) : null))));
}

function edgeName(edge) {
  return [edge.source, edge.dest, edge.kind, edge.state].join(" ");
}

function line(place, edge, rate, on) {
  const known = edge.routes.map(rate).filter((each) => each !== null);
  const sum = known.length ? known.reduce((all, each) => all + each, 0) : null;
  const [first, ...others] = edge.points.map((point) => point.join(","));
  const isOn = on ? edge.routes.some((route) => on.has(routeName(route))) : null;
  const rateText = sum === null ? "" : `${fraction(sum < 10 ? sum : Math.round(sum))} a minute`;
  const says = edge.label ? [...edge.says, rateText].filter(Boolean) : [];
  const top = edge.label ? edge.label.y - (says.length * LINE) / 2 : 0;
  const title = `${edge.title}${sum === null ? "" : `\n${rateText}`}`;
  return svg("a", {
    href: place.href("federation", { edge: edgeName(edge) }), "data-key": edgeName(edge),
    class: `line ${edge.state} ${isOn === null ? "" : isOn ? "on" : "off"}`,
  },
    svg("title", {}, title),
    svg("path", { d: `M${first} C${others.join(" ")}`, class: "grip" }),
    svg("path", { d: `M${first} C${others.join(" ")}`, "stroke-width": WIDTHS[edge.kind], "stroke-dasharray": DASHES[edge.kind], class: sum && !on ? "stroke flows" : "stroke" }),
    edge.heads.map(([from, tip]) => svg("polygon", { points: head(from, tip), class: "head" })),
    says.length ? svg("rect", { x: edge.label.x - edge.label.width / 2, y: top - 2, width: edge.label.width, height: says.length * LINE + 4, rx: 4, class: "paper" }) : null,
    says.map((text, at) => svg("text", { x: edge.label.x, y: top + LINE * at + 12, "text-anchor": "middle", class: text === rateText && at === says.length - 1 ? "rate" : "says" }, text)));
}

function head([x, y], [tipX, tipY]) {
  const length = Math.hypot(tipX - x, tipY - y) || 1;
  const asideX = ((tipY - y) / length) * 4;
  const asideY = ((x - tipX) / length) * 4;
  return [[tipX, tipY], [x + asideX, y + asideY], [x - asideX, y - asideY]].map((each) => each.map((value) => value.toFixed(1)).join(",")).join(" ");
}

function box(node, isOn) {
  const left = node.x - node.width / 2;
  const top = node.y - node.height / 2;
  const first = node.y - (node.says.length * LINE) / 2 + 13;
  return svg("g", { class: `node ${node.here ? "here" : ""} ${node.reached ? "" : "away"} ${isOn === null ? "" : isOn ? "on" : "off"}`, "data-key": node.tag },
    svg("title", {}, `${node.tag}${node.here ? ", this site" : ""}${node.reached ? "" : ", not reached"}`),
    svg("rect", { x: left, y: top, width: node.width, height: node.height, rx: 8 }),
    node.says.map((text, at) => svg("text", { x: node.x, y: first + LINE * at, "text-anchor": "middle", class: at ? "quiet" : "name" }, text)));
}

function legend(drawn) {
  const kinds = new Set(drawn.edges.map((each) => each.kind));
  const states = new Set(drawn.edges.map((each) => each.state));
  const sample = (kind, colour) => svg("svg", { class: "swatch", width: 32, height: 10, viewBox: "0 0 32 10", "aria-hidden": "true" },
    svg("path", { d: "M0,5 L32,5", class: `sample ${colour}`, "stroke-width": WIDTHS[kind], "stroke-dasharray": DASHES[kind] }));
  return el("ul", { class: "legend" },
    Object.entries(KINDS).filter(([kind]) => kinds.has(kind)).map(([kind, said]) => el("li", { "data-key": kind }, sample(kind, "quiet"), said)),
    Object.entries(STATES).filter(([name]) => states.has(name)).map(([name, said]) => el("li", { "data-key": name }, sample("static", name), said)));
}

// Where a key goes

function tracer(place, found) {
  const keep = (name) => (event) => { state[name] = event.target.value; };
  state.exchange ||= (found.exchanges.find((each) => each.name === "events") ?? found.exchanges[0])?.name ?? "";
  return el("form", { class: "tracer", onsubmit: (event) => { event.preventDefault(); trace(place); } },
    el("label", { class: "field" }, "Where would a message to ", el("select", { id: "trace-exchange", "data-kept": true, onchange: keep("exchange") },
      found.exchanges.map((each) => el("option", { value: each.name, selected: each.name === state.exchange }, each.name)))),
    el("label", { class: "field" }, " with the key ", el("input", { id: "trace-key", type: "text", size: "16", placeholder: "order.eu.new", oninput: keep("key") })),
    el("label", { class: "field" }, " and headers ", el("input", { id: "trace-headers", type: "text", size: "14", placeholder: "name=value", oninput: keep("headers") })),
    el("button", { class: "main", type: "submit", disabled: state.busy }, state.busy ? "Asking…" : "go from here?"),
    state.found ? el("button", { type: "button", onclick: () => { state.found = null; place.redraw(); } }, "Clear") : null);
}

function trace(place) {
  const headers = state.headers.split(/[,\n]/).map((each) => each.trim()).join("\n");
  return asking(place, state, "found", () => ask("trace-key", place.site.number, { exchange: state.exchange, key: state.key, headers }));
}

function routeName(route) {
  return `${route.declared_at} ${route.name}`;
}

function tracedRoutes() {
  if (!state.found) return null;
  return new Set(state.found.stages.flatMap((stage) => stage.passages.filter((each) => !each.held).map(routeName)));
}

function traced() {
  if (state.wrong) return el("p", { class: "error", role: "alert" }, state.wrong);
  const found = state.found;
  if (!found) return null;
  const nowhere = found.stages.every((each) => !each.queues.length) && !found.unknown.length;
  return el("div", { class: "traced", role: "status", "aria-label": "Where it goes" },
    nowhere ? el("p", {}, el("strong", {}, "No queue gets it.")) : null,
    el("ol", {}, found.stages.map((stage, at) => el("li", { "data-key": `${at} ${stage.site} ${stage.exchange}` },
      el("p", {}, el("strong", {}, stage.site), ` ${stage.exchange}`, stage.key ? [" with key ", el("code", {}, stage.key)] : "",
        stage.over.length ? el("span", { class: "quiet" }, ` over ${stage.over.map((each) => each.name).join(", ")}`) : null),
      stage.queues.length
        ? el("ul", { class: "chips" }, stage.queues.map((queue) => el("li", { "data-key": queue, class: "chip" }, queue)))
        : el("p", { class: "quiet" }, "no queue here"),
      stage.passages.map((each) => el("p", { "data-key": each.name, class: "quiet" },
        `→ ${each.dest} over ${each.name}: `, el("span", { class: each.held ? "no" : "yes" }, passageText(each))))))),
    found.unknown.map((each) => el("p", { "data-key": each.site, class: "quiet" }, `Not known: ${each.site}: ${each.why}`)));
}

function passageText(passage) {
  if (passage.held) return `stays: ${passage.held}`;
  const said = passage.waits ? `waits there, ${passage.state.toLowerCase()}` : "goes over";
  return passage.sure ? said : `${said}, if a binding there matches`;
}

// What a line stands for

function edgeCard(place, found) {
  const name = place.query.get("edge");
  const edge = name && found.map?.edges.find((each) => edgeName(each) === name);
  if (!edge) return null;
  return section(`From ${edge.source} to ${edge.dest}`,
    el("ul", { class: "verdicts" }, edge.routes.map((route) => el("li", { "data-key": routeName(route) },
      el("p", { class: "named" }, badge(route.state), el("strong", {}, route.name), el("span", { class: "quiet" }, `${KINDS[route.kind]} · ${route.src} to ${route.to}`), route.key ? el("code", {}, route.key) : null),
      el("p", { class: "quiet" }, `Declared at ${route.declared_at}, over ${route.link}.`),
      commands(place, "tell-route", found.routes.find((each) => [route.name, route.served].includes(each.name) && each.source === route.source))))),
    el("a", { class: "button", href: place.href("federation") }, "Close"));
}

// Routes and links of this site

function routes(place, found) {
  const columns = [{ name: "Route" }, { name: "State" }, { name: "From, to" }, { name: "Waiting", number: true }, { name: "Lag", number: true },
    { name: `A minute, of ${found.minutes}` }, { name: "Forwarded" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.routes.map((each) => [
    el("span", { class: "stack" }, el("strong", {}, each.name), el("span", { class: "quiet" }, `${each.kind}${each.served ? ", pulled by its peer" : ""}`)),
    el("span", { class: "stack" }, el("span", {}, badge(each.state.split(":")[0])), each.error ? el("span", { class: "wrong" }, each.error) : null),
    el("span", { class: "stack" }, end(each.source, each.src, found.tag, ""), end(each.dest, each.to, found.tag, "→ "), each.key ? el("code", {}, each.key) : null),
    waiting(each), milliseconds(each.forwarded_ms),
    each.minutes ? el("span", { class: "stack" }, el("span", {}, fraction(average(each.minutes))), tiny(each.minutes)) : "–", el("span", { class: "nowrap" }, ago(each.last_forward_ms)),
    ...(place.actions ? [commands(place, "tell-route", each)] : []),
  ]);
  return section("Routes", table("Routes", columns, rows, { empty: "No route begins or ends here.", key: (_, at) => found.routes[at].name }));
}

function waiting(route) {
  if (!route.queue) return "at its peer";
  const oldest = route.waiting_s ? el("span", { class: "quiet" }, `since ${milliseconds(route.waiting_s * 1_000)}`) : null;
  return el("span", { class: "stack" }, el("span", {}, number(route.queue.visible)), oldest);
}

function end(tag, name, here, before) {
  return el("span", {}, before, tag === here ? el("em", {}, "here") : tag, " ", el("span", { class: "quiet" }, name));
}

function tiny(minutes) {
  const most = Math.max(1, ...minutes);
  const step = 6;
  return svg("svg", { class: "tiny", width: minutes.length * step, height: 24, viewBox: `0 0 ${minutes.length * step} 24`, role: "img", "aria-label": `each minute: ${minutes.join(", ")}` },
    minutes.map((value, at) => svg("rect", { x: at * step, y: 24 - Math.max(1, (value / most) * 22), width: step - 1.5, height: Math.max(1, (value / most) * 22), rx: 1 })));
}

function links(place, found) {
  const columns = [{ name: "Link" }, { name: "Peer" }, { name: "State" }, { name: "Last answer" }, { name: "Last error" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.links.map((each) => [
    el("strong", {}, each.name), each.peer, badge(each.state), ago(each.last_answer_ms), each.error ?? "–", ...(place.actions ? [commands(place, "tell-link", each)] : []),
  ]);
  return section("Links", table("Links", columns, rows, { empty: "This site has no link.", key: (_, at) => found.links[at].name }));
}

function commands(place, action, what) {
  if (!place.actions || !what) return null;
  const told = (name, fields, said) => place.done(act(name, place.site.number, { name: what.name, ...fields }), `${what.name}: ${said}`);
  return el("div", { class: "commands" },
    COMMANDS.map(([command, title]) => el("button", { type: "button", class: "small", "aria-label": `${title} ${what.name}`, onclick: () => told(action, { what: command }, command) }, title)),
    action === "tell-route" ? el("button", { type: "button", class: "small", "aria-label": `Redrive ${what.name}`, onclick: () => told("redrive-route", {}, "dead letters go back") }, "Redrive") : null);
}

// Exchanges and bindings

function bindings(place, found) {
  const chosen = place.query.get("exchange");
  const all = found.bindings ?? [];
  const counts = new Map();
  for (const each of all) counts.set(each.exchange, (counts.get(each.exchange) ?? 0) + 1);
  const page = paged(place, all.filter((each) => !chosen || each.exchange === chosen), (each) => `${each.queue} ${each.key}`, (many) => `${many} of ${number(found.bindings_number)}`);
  const columns = [{ name: "Exchange" }, { name: "Queue" }, { name: "Key" }, { name: "Arguments" }];
  const rows = page.shown.map((each) => [each.exchange, each.queue, each.key ? el("code", {}, each.key) : "–", Object.keys(each.arguments ?? {}).length ? el("code", {}, JSON.stringify(each.arguments)) : "–"]);
  return section("Exchanges and bindings",
    tabs("Exchanges", [
      { name: "All", note: "", key: "", href: place.href("federation", {}), current: !chosen },
      ...found.exchanges.map((each) => ({
        name: each.name, key: `x ${each.name}`, href: place.href("federation", { exchange: each.name }), current: chosen === each.name,
        note: `${each.type}, ${number(counts.get(each.name) ?? 0)}${each.alternate ? `, else ${each.alternate}` : ""}`,
      })),
    ]),
    page.find,
    found.bindings ? table("Bindings", columns, rows, { empty: "Nothing is bound.", key: (_, at) => `${page.shown[at].exchange} ${page.shown[at].queue} ${page.shown[at].key}` }) : null,
    page.pager);
}
