// Split queues: the flow of their messages, and their sessions.

import { drawSankey, drawSwatch, measureRoom, pickColour, redrawOnResize } from "../charts.js";
import { el } from "../dom.js";
import { act } from "../stream.js";
import { definePage, drawAge, drawBadge, drawPair, drawSection, drawStat, drawStats, drawTable, drawTabs, paginate } from "../widgets.js";
import { formatAge, formatNumber, formatTime } from "../words.js";

const MAX_FLOWS = 12; // sessions with their own flow; the other sessions are drawn as one flow
const MAIN_COLOUR = "var(--quiet)";

const state = { place: null };
redrawOnResize(() => state.place?.redraw());

export const { topics, render } = definePage("splitting", drawPage);

function drawPage(place, found) {
  state.place = place;
  if (!found.queues.length) {
    return drawSection("No queue", el("p", {}, "No queue can be split yet: ", el("code", {}, "sluice split register"), " adds one."));
  }
  const queue = found.queues.find((candidate) => candidate.queue_id === place.query.get("queue")) ?? found.queues[0];
  const sessions = found.sessions.filter((session) => findOwn(session, queue));
  const colours = new Map(sessions.map((session, at) => [session.session_id, pickColour(at)]));
  return [
    drawQueues(place, found, queue),
    drawFlows(place, found, queue, sessions, colours),
    drawSplits(found),
    drawSession(place, found),
    drawSessions(place, found, queue, sessions, colours),
  ];
}

function drawQueues(place, found, chosen) {
  return drawTabs("Split queues", found.queues.map((queue) => {
    const many = found.sessions.filter((session) => findOwn(session, queue)).length;
    return {
      key: queue.queue_id, name: queue.queue_id, href: place.buildHref("splitting", { queue: queue.queue_id }),
      current: queue === chosen, note: `${formatNumber(many)} ${many === 1 ? "session" : "sessions"}`,
    };
  }));
}

// The picture

function drawFlows(place, found, queue, sessions, colours) {
  const period = `last ${found.minutes} min`;
  return drawSection("Who takes what",
    drawStats(
      drawStat("Waiting at the source", queue.source.visible),
      drawStat("In flight", queue.source.in_flight),
      drawStat("Waiting at main", queue.main.visible),
      drawStat(`Read, ${period}`, queue.counted.read),
      drawStat("Sessions", sessions.length)),
    found.uncounted ? el("p", { class: "error" }, `Messages can't be counted: ${found.uncounted}`) : null,
    drawSankey({
      label: `Messages of ${queue.queue_id} in the ${period}: ${buildTargets(place, queue, sessions, colours).map((target) => `${target.name} ${target.note}`).join("; ")}`,
      source: { name: queue.queue_id, note: formatAmount(queue.counted.read, "read") },
      targets: buildTargets(place, queue, sessions, colours),
      width: measureRoom(),
    }),
    el("p", { class: "quiet" },
      "The first session whose filter matches takes a message. Mirroring sessions get copies (dashed). Other messages go to the main queue."),
    queue.rules.length ? el("p", { class: "quiet" }, `Policies for sessions: ${queue.rules.join("; ")}.`) : null);
}

function buildTargets(place, queue, sessions, colours) {
  const flows = sessions.map((session) => {
    const { mode } = findOwn(session, queue);
    const value = session.counted[queue.queue_id];
    return {
      key: session.session_id, name: nameSession(session), value, colour: colours.get(session.session_id),
      dashed: mode === "mirror", note: `${formatAmount(value, mode === "mirror" ? "copied" : "taken")} · ${session.status}`,
      href: place.buildHref("splitting", { queue: queue.queue_id, session: session.session_id }),
    };
  });
  const drawn = flows.length > MAX_FLOWS ? [...flows].sort((one, other) => (other.value ?? -1) - (one.value ?? -1)).slice(0, MAX_FLOWS) : flows;
  const others = flows.filter((flow) => !drawn.includes(flow));
  const rest = others.length
    ? [{ key: "others", name: `${formatNumber(others.length)} other sessions`, colour: MAIN_COLOUR, value: addValues(others), note: formatAmount(addValues(others), "taken") }]
    : [];
  const main = { key: "main", name: "main", value: queue.counted.main, colour: MAIN_COLOUR, note: `${formatAmount(queue.counted.main, "left")} · the deployed consumer's` };
  return [...drawn, ...rest, main];
}

function formatAmount(value, what) {
  return value === null || value === undefined ? "not counted" : `${formatNumber(value)} ${what}`;
}

function addValues(flows) {
  return flows.reduce((all, flow) => all + (flow.value ?? 0), 0);
}

function findOwn(session, queue) {
  return session.queues.find((own) => own.queue_id === queue.queue_id);
}

function drawSplits(found) {
  if (!found.splits.length) return null;
  const columns = [{ name: "Queue" }, { name: "Phase" }, { name: "Since" }, { name: "Waits for" }, { name: "Consumers" }, { name: "Last problem" }];
  return drawSection("Splits that aren't at rest", drawTable("Splits", columns, found.splits.map((split) => [
    split.queue_id, drawBadge(split.phase), drawAge(split.phase_since_ms), split.waits_for,
    Object.entries(split.consumers).map(([consumer, at]) => `${consumer}: ${at}`).join("; "), split.not_moved,
  ])));
}

// Sessions

const nameSession = (session) => session.name || session.owner || session.session_id;

function drawSessions(place, found, queue, sessions, colours) {
  const page = paginate(place, sessions, (session) => [session.session_id, session.name, session.owner, session.key, session.status].join("\n"),
    (many) => `${many} of ${formatNumber(sessions.length)}, in the order in which they are asked`);
  const columns = [{ name: "Owner" }, { name: "State" }, { name: "Mode" }, { name: "Filter" }, { name: `${found.minutes} min`, number: true },
    { name: "Total", number: true }, { name: "Returned", number: true }, { name: "Started" }, { name: "Last heartbeat" }];
  const rows = page.shown.map((session) => {
    const own = findOwn(session, queue);
    return [
      el("span", { class: "named" }, drawSwatch(colours.get(session.session_id)),
        el("a", { href: place.buildHref("splitting", { queue: queue.queue_id, session: session.session_id, find: page.sought, from: page.from || null }), "aria-label": `${session.owner}, session ${session.session_id}` }, nameSession(session))),
      drawBadge(session.status), own.shadowed_by ? `${own.mode}, shadowed by ${own.shadowed_by}` : own.mode, el("code", { class: "brief" }, own.asks_for),
      session.counted[queue.queue_id] ?? "–", session.messages, own.returned,
      drawAge(session.started_at_ms), el("span", { class: "nowrap" }, formatAge(session.heartbeat_at_ms)),
    ];
  });
  return drawSection("Sessions",
    page.find,
    drawTable("Sessions", columns, rows, { empty: "There is no session: all messages go to the main queue.", key: (_, at) => page.shown[at].session_id }),
    page.pager);
}

// One session, with its queues

function drawSession(place, found) {
  const id = place.query.get("session");
  if (!id) return null;
  const session = found.sessions.find((candidate) => candidate.session_id === id);
  const close = el("a", { class: "button", href: place.buildHref("splitting", { queue: place.query.get("queue"), find: place.query.get("find"), from: place.query.get("from") }) }, "Close");
  if (!session) return drawSection("Session", el("p", {}, `Session ${id} has ended.`), close);
  return drawSection("Session",
    el("dl", { class: "about" },
      drawPair("Session", el("code", {}, session.session_id)), session.name ? drawPair("Name", session.name) : null, drawPair("Key", el("code", {}, session.key)), drawPair("Owner", session.owner),
      drawPair("State", [drawBadge(session.status), session.reason ? ` ${session.reason}` : ""]), drawPair("Started", formatTime(session.started_at_ms)),
      drawPair("Last heartbeat", formatAge(session.heartbeat_at_ms)), drawPair("Messages", formatNumber(session.messages))),
    el("h3", {}, "Filters"),
    el("dl", { class: "about" }, session.queues.map((own) => drawPair(own.queue_id, [el("code", {}, own.asks_for), ` (${own.mode})`]))),
    el("h3", {}, "Queues"),
    el("dl", { class: "pairs" }, session.queues.map((own) => drawPair(own.queue_id, own.url ? el("code", {}, own.url) : "not created yet"))),
    el("div", { class: "row" },
      place.actions ? el("button", { type: "button", class: "danger", onclick: () => stopSession(place, session) }, "Stop session") : null,
      close));
}

function stopSession(place, session) {
  place.report(act("stop-session", place.site.number, { session_id: session.session_id }),
    (ended) => `${session.owner}'s session: ${ended.status}. Messages that it hasn't read return to the deployed consumer.`);
}
