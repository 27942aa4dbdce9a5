// Split queues: where their messages go, whose sessions there are, and who would take a message.

import { colour, redrawnWhenResized, room, sankey, swatch } from "../charts.js";
import { el } from "../dom.js";
import { act, ask } from "../stream.js";
import { asking, badge, ofReading, paged, pair, section, since, stat, stats, table, tabs } from "../widgets.js";
import { ago, clock, number } from "../words.js";

const MAX_FLOWS = 12; // sessions that are drawn; the others are one flow
const EXAMPLE = JSON.stringify({ Body: "hello", MessageAttributes: { user: { DataType: "String", StringValue: "me" } } }, null, 2);
const MAIN_COLOUR = "var(--quiet)";

const state = { message: EXAMPLE, filters: "", key: "", found: null, wrong: null, busy: false, of: null, place: null };
redrawnWhenResized(() => state.place?.redraw());

export const { topics, render } = ofReading("splitting", whole);

function whole(place, found) {
  state.place = place;
  if (!found.queues.length) {
    return section("No queue", el("p", {}, "No queue can be split yet: ", el("code", {}, "sluice split register"), " adds one."));
  }
  const queue = found.queues.find((each) => each.queue_id === place.query.get("queue")) ?? found.queues[0];
  if (state.of !== `${place.site.name} ${queue.queue_id}`) {
    Object.assign(state, { of: `${place.site.name} ${queue.queue_id}`, found: null, wrong: null });
  }
  const sessions = found.sessions.filter((each) => each.queues.some((own) => own.queue_id === queue.queue_id) || asked(each, queue.queue_id));
  const colours = new Map(sessions.map((each, at) => [each.session_id, colour(at)]));
  return [
    queues(place, found, queue),
    picture(place, found, queue, sessions, colours),
    one(place, found),
    list(place, found, queue, sessions, colours),
    el("div", { class: "cards two" }, tester(place, queue, colours), answer(place, colours)),
  ];
}

function queues(place, found, chosen) {
  return tabs("Split queues", found.queues.map((queue) => {
    const many = found.sessions.filter((each) => each.queues.some((own) => own.queue_id === queue.queue_id)).length;
    return {
      key: queue.queue_id, name: queue.queue_id, href: place.href("splitting", { queue: queue.queue_id }),
      current: queue === chosen, note: `${number(many)} ${many === 1 ? "session" : "sessions"}`,
    };
  }));
}

// The picture

function picture(place, found, queue, sessions, colours) {
  const period = `last ${found.minutes} min`;
  return section("Who takes what",
    stats(
      stat("Waiting at the source", queue.source.visible),
      stat("In flight", queue.source.in_flight),
      stat("Waiting at main", queue.main.visible),
      stat(`Read, ${period}`, queue.counted.read),
      stat("Sessions", sessions.length)),
    found.uncounted ? el("p", { class: "error" }, `Messages can't be counted: ${found.uncounted}`) : null,
    sankey({
      label: `Messages of ${queue.queue_id} in the ${period}: ${targets(place, queue, sessions, colours).map((each) => `${each.name} ${each.note}`).join("; ")}`,
      source: { name: queue.queue_id, note: amount(queue.counted.read, "read") },
      targets: targets(place, queue, sessions, colours),
      width: room(),
    }),
    el("p", { class: "quiet" },
      "The first session in line whose filter matches takes a message; a mirroring one gets a copy (dashed); the rest goes to main."),
    queue.rules.length ? el("p", { class: "quiet" }, `Sessions must keep to: ${queue.rules.join("; ")}.`) : null);
}

function targets(place, queue, sessions, colours) {
  const flows = sessions.map((session) => {
    const mode = modeOf(session, queue);
    const value = session.counted[queue.queue_id];
    return {
      key: session.session_id, name: session.owner || session.session_id, value, colour: colours.get(session.session_id),
      dashed: mode === "mirror", note: `${amount(value, mode === "mirror" ? "copied" : "taken")} · ${session.status}`,
      href: place.href("splitting", { queue: queue.queue_id, session: session.session_id }),
    };
  });
  const drawn = flows.length > MAX_FLOWS ? [...flows].sort((one, other) => (other.value ?? -1) - (one.value ?? -1)).slice(0, MAX_FLOWS) : flows;
  const others = flows.filter((each) => !drawn.includes(each));
  const rest = others.length
    ? [{ key: "others", name: `${number(others.length)} other sessions`, colour: MAIN_COLOUR, value: sum(others), note: amount(sum(others), "taken") }]
    : [];
  const main = { key: "main", name: "main", value: queue.counted.main, colour: MAIN_COLOUR, note: `${amount(queue.counted.main, "left")} · the deployed consumer's` };
  return [...drawn, ...rest, main];
}

function amount(value, what) {
  return value === null || value === undefined ? "not counted" : `${number(value)} ${what}`;
}

function sum(flows) {
  return flows.reduce((all, each) => all + (each.value ?? 0), 0);
}

function modeOf(session, queue) {
  return session.queues.find((each) => each.queue_id === queue.queue_id)?.mode ?? asked(session, queue.queue_id)?.mode ?? "steal";
}

function asked(session, queueId) {
  return Object.hasOwn(session.filters, queueId) ? session.filters[queueId] : session.filters["*"];
}

// Sessions

function list(place, found, queue, sessions, colours) {
  const page = paged(place, sessions, (each) => [each.session_id, each.owner, each.key, each.status].join("\n"),
    (many) => `${many} of ${number(sessions.length)}, in the order in which they are asked`);
  const columns = [{ name: "Owner" }, { name: "State" }, { name: "Mode" }, { name: "Filter" }, { name: `${found.minutes} min`, number: true },
    { name: "In all", number: true }, { name: "Returned", number: true }, { name: "Began" }, { name: "Heartbeat" }];
  const rows = page.shown.map((session) => {
    const own = session.queues.find((each) => each.queue_id === queue.queue_id);
    return [
      el("span", { class: "named" }, swatch(colours.get(session.session_id)),
        el("a", { href: place.href("splitting", { queue: queue.queue_id, session: session.session_id, find: page.sought, from: page.from || null }), "aria-label": `${session.owner}, session ${session.session_id}` }, session.owner || session.session_id)),
      badge(session.status), own?.mode ?? "steal", el("code", { class: "brief" }, filterText(asked(session, queue.queue_id))),
      session.counted[queue.queue_id] ?? "–", session.messages, own?.returned ?? 0,
      since(session.started_at_ms), el("span", { class: "nowrap" }, ago(session.heartbeat_at_ms)),
    ];
  });
  return section("Sessions",
    page.find,
    table("Sessions", columns, rows, { empty: "Nobody has a session: all messages go to main.", key: (_, at) => page.shown[at].session_id }),
    page.pager);
}

function filterText(queueFilter) {
  const filter = queueFilter?.filter;
  if (!filter) return "";
  const parts = (filter.attributes ?? []).map(([name, pattern]) => `${name} =~ ${pattern}`);
  if (filter.all_of) parts.push(...filter.all_of.map((pattern) => `line =~ ${pattern}`));
  if (filter.any_of) parts.push(`some line =~ ${filter.any_of.join(" or ")}`);
  if (filter.jq) parts.push(`jq ${filter.jq}`);
  return parts.join(", ") || "nothing";
}

// One session, with its queues

function one(place, found) {
  const id = place.query.get("session");
  if (!id) return null;
  const session = found.sessions.find((each) => each.session_id === id);
  const close = el("a", { class: "button", href: place.href("splitting", { queue: place.query.get("queue"), find: place.query.get("find"), from: place.query.get("from") }) }, "Close");
  if (!session) return section("Session", el("p", {}, `Session ${id} has ended.`), close);
  return section("Session",
    el("dl", { class: "about" },
      pair("Session", el("code", {}, session.session_id)), pair("Key", el("code", {}, session.key)), pair("Owner", session.owner),
      pair("State", [badge(session.status), session.reason ? ` ${session.reason}` : ""]), pair("Began", clock(session.started_at_ms)),
      pair("Heartbeat", ago(session.heartbeat_at_ms)), pair("Messages", number(session.messages))),
    el("h3", {}, "Filters"),
    el("dl", { class: "about" }, Object.entries(session.filters).map(([queueId, each]) => pair(queueId, [el("code", {}, filterText(each)), ` (${each.mode ?? "steal"})`]))),
    el("h3", {}, "Queues"),
    el("dl", { class: "pairs" }, session.queues.map((each) => pair(each.queue_id, each.url ? el("code", {}, each.url) : "not there yet"))),
    el("div", { class: "row" },
      place.actions ? el("button", { type: "button", class: "danger", onclick: () => stop(place, session) }, "Stop session") : null,
      close));
}

function stop(place, session) {
  place.done(act("stop-session", place.site.number, { session_id: session.session_id }),
    (ended) => `${session.owner}'s session: ${ended.status}. What it hasn't read goes back.`);
}

// The tester

function tester(place, queue, colours) {
  const field = (name) => (event) => { state[name] = event.target.value; };
  return section("Try a message",
    el("form", { onsubmit: (event) => { event.preventDefault(); attempt(place, queue); } },
      el("div", { class: "labelled" }, el("label", { for: "try-message" }, "Message, as the SQS API or a function's event has it"),
        el("textarea", { id: "try-message", spellcheck: "false", oninput: field("message"), "data-kept": true }, state.message)),
      el("details", {}, el("summary", {}, "With a filter of yours"),
        el("div", { class: "labelled" }, el("label", { for: "try-filters" }, "A filter file, which stands last in line"),
          el("textarea", { id: "try-filters", spellcheck: "false", oninput: field("filters"), "data-kept": true, placeholder: `split_queues:\n  ${queue.queue_id}:\n    message_filter: {user: "^me$"}` }, state.filters)),
        el("label", { class: "field" }, "Key ", el("input", { type: "text", id: "try-key", oninput: field("key") })),
        el("p", { class: "quiet" }, el("code", {}, "sluice split start -f FILE"), " starts a session with it.")),
      el("div", { class: "row" }, el("button", { class: "main", type: "submit", disabled: state.busy }, state.busy ? "Asking…" : "Who takes it?"))));
}

function attempt(place, queue) {
  const fields = { queue: queue.queue_id, message: state.message, filters: state.filters, key: state.key };
  return asking(place, state, "found", () => ask("try-message", place.site.number, fields));
}

const VERDICTS = {
  takes: ["Takes it", "good"], "gets a copy": ["Gets a copy", "good"],
  "too late": ["Would, but another one takes it first", "busy"], leaves: ["Leaves it", "over"],
};

function answer(place, colours) {
  if (state.wrong) return section("Answer", el("p", { class: "error", role: "alert" }, state.wrong));
  const found = state.found;
  if (!found) return section("Answer", el("p", { class: "quiet" }, "Each session's answer to the message, and to each of its conditions, stands here once you ask."));
  const taker = found.sessions.find((each) => each.session_id === found.taker);
  return section("Answer",
    el("p", { role: "status" }, el("strong", {}, taker ? `${named(taker)} takes it.` : "No session takes it: it goes to main.")),
    el("ol", { class: "verdicts" }, found.sessions.map((session) => verdict(session, colours))),
    found.left_out ? el("p", { class: "quiet" }, `${number(found.left_out)} more leave it.`) : null,
    found.not_routed.length
      ? el("p", { class: "quiet" }, `Not asked: ${found.not_routed.map((each) => `${each.owner} (${each.status})`).join(", ")}.`)
      : null);
}

function named(session) {
  return session.session_id === "" ? "Your filter" : session.owner || session.session_id;
}

function verdict(session, colours) {
  const [said, kind] = VERDICTS[session.verdict];
  return el("li", { "data-key": session.session_id },
    el("p", { class: "named" }, swatch(colours.get(session.session_id) ?? "var(--accent)"), el("strong", {}, named(session)), el("span", { class: `badge ${kind}` }, said)),
    session.conditions.length
      ? el("ul", { class: "conditions" }, session.conditions.map((each) =>
          el("li", {}, el("span", { class: each.answer === "yes" ? "yes" : "no" }, each.answer), " ", el("code", {}, each.place), " ", el("code", { class: "quiet" }, each.asked))))
      : el("p", { class: "quiet" }, "Its filter is empty, and takes nothing."));
}
