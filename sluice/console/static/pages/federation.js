// Federation: a map of all sites with their routes, and this site's bindings.

import { measureRoom, redrawOnResize } from "../charts.js";
import { el, svg } from "../dom.js";
import { act } from "../stream.js";
import { drawBadge, drawSection, drawStat, drawStats, drawTable, drawTabs, drawTrouble, drawTroubles, paginate } from "../widgets.js";
import { formatAge, formatFraction, formatMilliseconds, formatNumber } from "../words.js";

const NARROW = "(max-width: 48rem)";
const DASHES = { queue: null, static: null, dynamic: "6 4" };
const WIDTHS = { queue: 3.5, static: 1.75, dynamic: 1.75 };
const STATES = { good: "operational", slow: "stalled", bad: "failed", quiet: "waiting, paused or closing" };
const KINDS = { static: "static route", dynamic: "dynamic route", queue: "queue route" };
const COMMANDS = [["pause", "Pause"], ["resume", "Resume"], ["drain", "Drain"], ["retry", "Retry"]];
const LINE = 17; // px, the height of a label's line

let shown = null; // the place that was drawn last
// Narrow windows follow another topic, so the page is routed again after a resize, unless another page is shown.
redrawOnResize(() => location.hash.startsWith("#/federation") && shown?.go({}, { replace: true }));

const buildTopic = (site) => `federation@${site.number}${matchMedia(NARROW).matches ? "?narrow=1" : ""}`;
const buildRatesTopic = (site) => `route-rates@${site.number}`;

export function topics({ site, sites }) {
  return [buildTopic(site), ...sites.filter((other) => other !== site).map(buildRatesTopic)];
}

export function render(place) {
  shown = place;
  const reading = place.readings.get(buildTopic(place.site));
  const found = reading?.document;
  return [drawTrouble(reading), found ? drawPage(place, found) : null];
}

function drawPage(place, found) {
  return [
    drawTroubles(found),
    found.warnings.length
      ? drawSection("Warnings", el("ul", { class: "warnings" }, found.warnings.map((warning) =>
          el("li", { "data-key": warning.text }, el("span", { class: `badge ${warning.effect === "lost" ? "bad" : "busy"}` }, warning.effect), " ", el("strong", {}, warning.concern), ` ${warning.text}`))))
      : null,
    drawMapSection(place, found),
    drawEdgeSection(place, found),
    drawRoutes(place, found),
    drawLinks(place, found),
    drawBindings(place, found),
  ];
}

// The map

function drawMapSection(place, found) {
  const findRate = buildRateLookup(place, found);
  const unreached = Object.entries(found.not_reached);
  return drawSection("Map",
    drawStats(drawStat("Sites", found.map?.nodes.length ?? null), drawStat("Routes here", found.routes.length), drawStat("Exchanges", found.exchanges.length),
      drawStat("Bindings", found.bindings_number), drawStat("Warnings", found.warnings.length, { kind: found.warnings.length ? "bad" : "good" })),
    found.map ? drawMap(place, found.map, findRate) : null,
    found.map ? drawLegend(found.map) : null,
    unreached.length
      ? el("details", {}, el("summary", {}, `${formatNumber(unreached.length)} not reached`), el("ul", {}, unreached.map(([tag, why]) => el("li", { "data-key": tag }, el("strong", {}, tag), ` ${why}`))))
      : null);
}

// Returns a function that finds a route's messages per minute, from the readings of the site at the route's source.
function buildRateLookup(place, found) {
  const known = new Map([[found.tag, new Map(found.routes.map((route) => [route.name, route.minutes]))]]);
  for (const [name, reading] of place.readings) {
    if (name.startsWith("route-rates@") && reading.document) known.set(reading.document.tag, new Map(Object.entries(reading.document.routes)));
  }
  return (route) => {
    const minutes = known.get(route.source)?.get(route.declared_at === route.source ? route.name : route.served);
    return minutes ? computeAverage(minutes) : null;
  };
}

function computeAverage(minutes) {
  const lately = minutes.slice(-5);
  return lately.reduce((sum, count) => sum + count, 0) / lately.length;
}

function drawMap(place, drawn, findRate) {
  const wide = measureRoom();
  const scale = Math.min(1.5, Math.max(0.72, wide / drawn.width));
  return el("div", { class: "wide map", tabindex: "0", role: "region", "aria-label": "Map of sites" },
    svg("svg", { viewBox: `0 0 ${drawn.width} ${drawn.height}`, width: Math.round(drawn.width * scale), height: Math.round(drawn.height * scale), role: "group", "aria-label": `${drawn.nodes.length} sites, ${drawn.edges.length} lines between them` },
      drawn.edges.map((edge) => drawEdge(place, edge, findRate)),
      drawn.nodes.map(drawSite)));
}

function nameEdge(edge) {
  return [edge.source, edge.dest, edge.kind, edge.state].join(" ");
}

function drawEdge(place, edge, findRate) {
  const known = edge.routes.map(findRate).filter((value) => value !== null);
  const sum = known.length ? known.reduce((all, value) => all + value, 0) : null;
  const [first, ...others] = edge.points.map((point) => point.join(","));
  const rateText = sum === null ? "" : `${formatFraction(sum < 10 ? sum : Math.round(sum))} a minute`;
  const says = edge.label ? [...edge.says, rateText].filter(Boolean) : [];
  const top = edge.label ? edge.label.y - (says.length * LINE) / 2 : 0;
  const title = `${edge.title}${sum === null ? "" : `\n${rateText}`}`;
  return svg("a", {
    href: place.buildHref("federation", { edge: nameEdge(edge) }), "data-key": nameEdge(edge),
    class: `line ${edge.state}`,
  },
    svg("title", {}, title),
    svg("path", { d: `M${first} C${others.join(" ")}`, class: "grip" }),
    svg("path", { d: `M${first} C${others.join(" ")}`, "stroke-width": WIDTHS[edge.kind], "stroke-dasharray": DASHES[edge.kind], class: sum ? "stroke flows" : "stroke" }),
    edge.heads.map(([from, tip]) => svg("polygon", { points: placeHead(from, tip), class: "head" })),
    says.length ? svg("rect", { x: edge.label.x - edge.label.width / 2, y: top - 2, width: edge.label.width, height: says.length * LINE + 4, rx: 4, class: "paper" }) : null,
    says.map((text, at) => svg("text", { x: edge.label.x, y: top + LINE * at + 12, "text-anchor": "middle", class: text === rateText && at === says.length - 1 ? "rate" : "says" }, text)));
}

function placeHead([x, y], [tipX, tipY]) {
  const length = Math.hypot(tipX - x, tipY - y) || 1;
  const asideX = ((tipY - y) / length) * 4;
  const asideY = ((x - tipX) / length) * 4;
  return [[tipX, tipY], [x + asideX, y + asideY], [x - asideX, y - asideY]].map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ");
}

function drawSite(node) {
  const left = node.x - node.width / 2;
  const top = node.y - node.height / 2;
  const first = node.y - (node.says.length * LINE) / 2 + 13;
  return svg("g", { class: `node ${node.here ? "here" : ""} ${node.reached ? "" : "away"}`, "data-key": node.tag },
    svg("title", {}, `${node.tag}${node.here ? ", this site" : ""}${node.reached ? "" : ", not reached"}`),
    svg("rect", { x: left, y: top, width: node.width, height: node.height, rx: 8 }),
    node.says.map((text, at) => svg("text", { x: node.x, y: first + LINE * at, "text-anchor": "middle", class: at ? "quiet" : "name" }, text)));
}

function drawLegend(drawn) {
  const kinds = new Set(drawn.edges.map((edge) => edge.kind));
  const states = new Set(drawn.edges.map((edge) => edge.state));
  const sample = (kind, colour) => svg("svg", { class: "swatch", width: 32, height: 10, viewBox: "0 0 32 10", "aria-hidden": "true" },
    svg("path", { d: "M0,5 L32,5", class: `sample ${colour}`, "stroke-width": WIDTHS[kind], "stroke-dasharray": DASHES[kind] }));
  return el("ul", { class: "legend" },
    Object.entries(KINDS).filter(([kind]) => kinds.has(kind)).map(([kind, said]) => el("li", { "data-key": kind }, sample(kind, "quiet"), said)),
    Object.entries(STATES).filter(([name]) => states.has(name)).map(([name, said]) => el("li", { "data-key": name }, sample("static", name), said)));
}

// The routes of a line on the map

function drawEdgeSection(place, found) {
  const name = place.query.get("edge");
  const edge = name && found.map?.edges.find((candidate) => nameEdge(candidate) === name);
  if (!edge) return null;
  return drawSection(`From ${edge.source} to ${edge.dest}`,
    el("ul", { class: "verdicts" }, edge.routes.map((route) => el("li", { "data-key": `${route.declared_at} ${route.name}` },
      el("p", { class: "named" }, drawBadge(route.state), el("strong", {}, route.name), el("span", { class: "quiet" }, `${KINDS[route.kind]} · ${route.src} to ${route.to}`), route.key ? el("code", {}, route.key) : null),
      el("p", { class: "quiet" }, `Declared at ${route.declared_at}, over ${route.link}.`),
      drawCommands(place, "tell-route", found.routes.find((candidate) => [route.name, route.served].includes(candidate.name) && candidate.source === route.source))))),
    el("a", { class: "button", href: place.buildHref("federation") }, "Close"));
}

// Routes and links of this site

function drawRoutes(place, found) {
  const columns = [{ name: "Route" }, { name: "State" }, { name: "From, to" }, { name: "Waiting", number: true }, { name: "Lag", number: true },
    { name: `Messages a minute, last ${found.minutes} min` }, { name: "Last forward" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.routes.map((route) => [
    el("span", { class: "stack" }, el("strong", {}, route.name), el("span", { class: "quiet" }, `${route.kind}${route.served ? ", pulled by its peer" : ""}`)),
    el("span", { class: "stack" }, el("span", {}, drawBadge(route.state.split(":")[0])), route.error ? el("span", { class: "wrong" }, route.error) : null),
    el("span", { class: "stack" }, drawEnd(route.source, route.src, found.tag, ""), drawEnd(route.dest, route.to, found.tag, "→ "), route.key ? el("code", {}, route.key) : null),
    drawWaiting(route), formatMilliseconds(route.forwarded_ms),
    route.minutes ? el("span", { class: "stack" }, el("span", {}, formatFraction(computeAverage(route.minutes))), drawMinutes(route.minutes)) : "–", el("span", { class: "nowrap" }, formatAge(route.last_forward_ms)),
    ...(place.actions ? [drawCommands(place, "tell-route", route)] : []),
  ]);
  return drawSection("Routes", drawTable("Routes", columns, rows, { empty: "No route begins or ends here.", key: (_, at) => found.routes[at].name }));
}

function drawWaiting(route) {
  if (!route.queue) return "at its peer";
  const oldest = route.waiting_s ? el("span", { class: "quiet" }, `oldest: ${formatMilliseconds(route.waiting_s * 1_000)}`) : null;
  return el("span", { class: "stack" }, el("span", {}, formatNumber(route.queue.visible)), oldest);
}

function drawEnd(tag, name, here, before) {
  return el("span", {}, before, tag === here ? el("em", {}, "here") : tag, " ", el("span", { class: "quiet" }, name));
}

function drawMinutes(minutes) {
  const most = Math.max(1, ...minutes);
  const step = 6;
  return svg("svg", { class: "tiny", width: minutes.length * step, height: 24, viewBox: `0 0 ${minutes.length * step} 24`, role: "img", "aria-label": `each minute: ${minutes.join(", ")}` },
    minutes.map((value, at) => svg("rect", { x: at * step, y: 24 - Math.max(1, (value / most) * 22), width: step - 1.5, height: Math.max(1, (value / most) * 22), rx: 1 })));
}

function drawLinks(place, found) {
  const columns = [{ name: "Link" }, { name: "Peer" }, { name: "State" }, { name: "Last answer" }, { name: "Last error" }, ...(place.actions ? [{ name: "Actions" }] : [])];
  const rows = found.links.map((link) => [
    el("strong", {}, link.name), link.peer, drawBadge(link.state), formatAge(link.last_answer_ms), link.error ?? "–", ...(place.actions ? [drawCommands(place, "tell-link", link)] : []),
  ]);
  return drawSection("Links", drawTable("Links", columns, rows, { empty: "This site has no link.", key: (_, at) => found.links[at].name }));
}

function drawCommands(place, action, what) {
  if (!place.actions || !what) return null;
  const sendCommand = (name, fields, text) => place.report(act(name, place.site.number, { name: what.name, ...fields }), `${what.name}: ${text}`);
  return el("div", { class: "commands" },
    COMMANDS.map(([command, title]) => el("button", { type: "button", class: "small", "aria-label": `${title} ${what.name}`, onclick: () => sendCommand(action, { what: command }, command) }, title)),
    action === "tell-route" ? el("button", { type: "button", class: "small", "aria-label": `Redrive ${what.name}`, onclick: () => sendCommand("redrive-route", {}, "dead letters were redriven") }, "Redrive") : null);
}

// Exchanges and bindings

function drawBindings(place, found) {
  const chosen = place.query.get("exchange");
  const all = found.bindings ?? [];
  const counts = new Map();
  for (const binding of all) counts.set(binding.exchange, (counts.get(binding.exchange) ?? 0) + 1);
  const page = paginate(place, all.filter((binding) => !chosen || binding.exchange === chosen), (binding) => `${binding.queue} ${binding.key}`, (many) => `${many} of ${formatNumber(found.bindings_number)}`);
  const columns = [{ name: "Exchange" }, { name: "Queue" }, { name: "Key" }, { name: "Arguments" }];
  const rows = page.shown.map((binding) => [binding.exchange, binding.queue, binding.key ? el("code", {}, binding.key) : "–", Object.keys(binding.arguments ?? {}).length ? el("code", {}, JSON.stringify(binding.arguments)) : "–"]);
  return drawSection("Exchanges and bindings",
    drawTabs("Exchanges", [
      { name: "All", note: "", key: "", href: place.buildHref("federation", {}), current: !chosen },
      ...found.exchanges.map((exchange) => ({
        name: exchange.name, key: `x ${exchange.name}`, href: place.buildHref("federation", { exchange: exchange.name }), current: chosen === exchange.name,
        note: `${exchange.type}, ${formatNumber(counts.get(exchange.name) ?? 0)}${exchange.alternate ? `, else ${exchange.alternate}` : ""}`,
      })),
    ]),
    page.find,
    found.bindings ? drawTable("Bindings", columns, rows, { empty: "Nothing is bound.", key: (_, at) => `${page.shown[at].exchange} ${page.shown[at].queue} ${page.shown[at].key}` }) : null,
    page.pager);
}
