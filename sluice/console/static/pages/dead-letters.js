// Dead letters by queue and reason: looked at when somebody asks, put back or thrown away where that is allowed.

import { el } from "../dom.js";
import { act, ask } from "../stream.js";
import { ofReading, pager, pair, section, table } from "../widgets.js";
import { ago, bytes, clock, number } from "../words.js";

const A_PAGE = 50; // letters that are drawn at once
const MORE = 10_000; // that are looked at, at most

// What was looked at, by site and queue: it stays while one goes to other pages and comes back.
const seen = new Map();

export const { topics, render } = ofReading("dead-letters", whole);

function whole(place, found) {
  const queue = place.query.get("queue");
  const known = found.queues.find((each) => each.queue === queue);
  return [
    section("Queues", queues(found, place)),
    queue && !known ? el("p", { class: "error", "data-key": "unknown" }, `${queue} is no dead-letter queue of this site.`) : null,
    known ? letters(place, known, found.moves.find((each) => each.queue === queue)) : null,
  ];
}

function queues(found, place) {
  return table("Queues of dead letters",
    [{ name: "Queue" }, { name: "Letters", number: true }, { name: "In flight", number: true }, { name: "Moved" }],
    found.queues.map((each) => [
      el("a", { href: place.href("dead-letters", { queue: each.queue }), "aria-current": each.queue === place.query.get("queue") ? "true" : null }, each.queue),
      number(each.visible === null ? null : each.visible + each.in_flight), number(each.in_flight),
      movedText(found.moves.find((move) => move.queue === each.queue)),
    ]), { key: (_, at) => found.queues[at].queue });
}

function moveText(move) {
  if (!move) return "";
  const done = move.what === "redrive" ? "put back" : "thrown away";
  const how = move.ended ? (move.error ? `failed: ${move.error}` : move.stopped ? "stopped" : "done") : "goes on…";
  return `${number(move.moved)} ${done}, ${number(move.stays)} stay; ${how}`;
}

function movedText(move) {
  if (!move) return "";
  return [moveText(move), ", begun ", el("time", { datetime: new Date(move.began_ms).toISOString(), title: clock(move.began_ms) }, ago(move.began_ms))];
}

// One queue

function stateOf(place, queue) {
  const key = `${place.site.name} ${queue}`;
  if (!seen.has(key)) seen.set(key, { queue, site: place.site.number, looking: false, found: null, error: null, asked: null, chosen: new Set(), from: 0, whole: new Map(), mostLooked: 1_000, moveSeen: 0 });
  return seen.get(key);
}

const reasonsOf = (place) => place.query.getAll("reason").filter(Boolean);

// What is chosen, or shown whole, stays so while its letter is there: a look, which an ended move leads to, may come amid.
async function look(place, state) {
  const asked = reasonsOf(place);
  const isOther = asked.join() !== state.asked;
  Object.assign(state, { looking: true, error: null, asked: asked.join() });
  place.redraw();
  try {
    state.found = await ask("dead-letters", state.site, { queue: state.queue, reasons: asked, looked_at: state.mostLooked });
    const ids = new Set(state.found.letters.map((letter) => letter.id));
    state.chosen = new Set([...state.chosen].filter((id) => ids.has(id)));
    state.whole = new Map([...state.whole].filter(([id]) => ids.has(id)));
    state.from = isOther ? 0 : Math.min(state.from, A_PAGE * Math.floor(Math.max(0, ids.size - 1) / A_PAGE));
  } catch (error) {
    state.error = error.message;
    if (isOther) state.found = null;
  }
  state.looking = false;
  place.redraw();
}

function letters(place, held, move) {
  const state = stateOf(place, held.queue);
  const isOther = state.asked !== reasonsOf(place).join();
  const hasMoved = move?.ended && state.moveSeen !== move.began_ms;
  // A look that failed isn't tried again by itself, until there is something else to be seen.
  if (!state.looking && (isOther || hasMoved)) {
    if (move?.ended) state.moveSeen = move.began_ms;
    queueMicrotask(() => look(place, state));
  }
  return section(`Letters of ${held.queue}`,
    el("div", { class: "row" },
      el("button", { type: "button", disabled: state.looking, onclick: () => look(place, state) }, state.looking ? "Looking…" : "Look again"),
      state.found ? el("span", { class: "quiet", role: "status" }, lookedText(state, held)) : null,
      state.found && state.found.looked_at >= state.mostLooked && state.mostLooked < MORE
        ? el("button", { type: "button", onclick: () => { state.mostLooked = MORE; look(place, state); } }, `Look at ${number(MORE)}`) : null),
    state.error ? el("p", { class: "error", role: "alert" }, state.error) : null,
    move && !move.ended ? el("div", { class: "row" }, el("span", { role: "status" }, moveText(move)),
      el("button", { type: "button", onclick: () => place.done(act("stop-move", state.site, { queue: state.queue }), "It stops after this batch.") }, "Stop")) : null,
    state.found ? [reasons(place, state), actions(place, state), list(place, state)] : null);
}

function lookedText(state, held) {
  const all = held.visible === null ? null : held.visible + held.in_flight;
  return all !== null && all > state.found.looked_at
    ? `${number(state.found.looked_at)} of about ${number(all)} were looked at.`
    : `${number(state.found.looked_at)} were looked at.`;
}

function reasons(place, state) {
  const chosen = reasonsOf(place);
  return table("Reasons", [{ name: "Reason" }, { name: "Letters", number: true }, { name: "Oldest" }, { name: "From" }],
    state.found.reasons.map((each) => [
      el("a", { href: place.href("dead-letters", { queue: state.queue, reason: chosen.includes(each.reason) ? null : each.reason }), "aria-current": chosen.includes(each.reason) ? "true" : null },
        chosen.includes(each.reason) ? `${each.reason} (show all)` : each.reason),
      each.letters, el("time", { title: clock(each.oldest_ms) }, ago(each.oldest_ms)),
      Object.entries(each.sources).map(([source, count]) => `${source || "not recorded"} (${number(count)})`).join(", "),
    ]), { empty: "There are no letters.", key: (_, at) => state.found.reasons[at].reason });
}

function actions(place, state) {
  if (!place.actions || !state.found.letters.length) return null;
  const reason = reasonsOf(place);
  const which = reason.length ? `all of ${reason.join(", ")}` : "all";
  const chosen = [...state.chosen];
  const redrive = (fields) => place.done(act("redrive", state.site, { queue: state.queue, ...fields }), "They go back.");
  return el("div", { class: "row" },
    el("button", { type: "button", disabled: !chosen.length, onclick: () => redrive({ ids: chosen }) }, `Redrive ${number(chosen.length)} selected`),
    el("button", { type: "button", onclick: () => redrive({ reasons: reason }) }, `Redrive ${which}`),
    el("button", { type: "button", class: "danger", disabled: !chosen.length, onclick: () => purge(place, state, { ids: chosen }, `${number(chosen.length)} letters`) }, `Purge ${number(chosen.length)} selected…`),
    el("button", { type: "button", class: "danger", onclick: () => purge(place, state, { reasons: reason }, `${which} letters`) }, `Purge ${which}…`));
}

function purge(place, state, fields, what) {
  const input = el("input", { name: "typed", id: "typed", autocomplete: "off", spellcheck: "false" });
  const confirm = el("button", { class: "danger", value: "purge", disabled: true }, "Purge");
  input.addEventListener("input", () => { confirm.disabled = input.value !== state.queue; });
  const dialog = el("dialog", { "aria-labelledby": "purge-title" },
    el("h2", { id: "purge-title" }, `Throw ${what} away?`),
    el("p", {}, "These letters can't be brought back."),
    el("form", { method: "dialog" },
      el("p", {}, el("label", { for: "typed" }, "Type ", el("code", {}, state.queue), " to go on: "), input),
      el("div", { class: "row" }, confirm, el("button", { value: "cancel", type: "button", onclick: () => dialog.close("cancel") }, "Cancel"))));
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "purge") place.done(act("purge", state.site, { queue: state.queue, typed: input.value, ...fields }), "They are thrown away.");
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

function list(place, state) {
  const all = state.found.letters;
  const shown = all.slice(state.from, state.from + A_PAGE);
  const go = (from) => { state.from = from; place.redraw(); };
  return [
    el("ul", { class: "letters" }, shown.map((letter) => one(place, state, letter))),
    pager(state.from, A_PAGE, all.length, go),
  ];
}

function one(place, state, letter) {
  const whole = state.whole.get(letter.id);
  const body = whole ?? letter.body;
  const choose = (event) => {
    if (event.target.checked) state.chosen.add(letter.id);
    else state.chosen.delete(letter.id);
    place.redraw();
  };
  return el("li", { "data-key": letter.id },
    place.actions ? el("input", { type: "checkbox", checked: state.chosen.has(letter.id), "aria-label": `Select letter ${letter.id}`, onchange: choose }) : null,
    el("details", {},
      el("summary", {}, el("span", { class: "badge bad" }, letter.reason), " ", el("span", { class: "said" }, letter.said || letter.body.slice(0, 80)), " ",
        el("span", { class: "quiet" }, ago(letter.died_ms))),
      el("dl", { class: "pairs" },
        pair("Id", letter.id), pair("Said", letter.said || "–"), pair("From", letter.source || "–"), pair("Died", clock(letter.died_ms)),
        pair("Receives", number(letter.receives)), letter.group ? pair("Group", letter.group) : null,
        Object.entries(letter.attributes).map(([name, value]) => pair(name, value || "–"))),
      el("pre", { tabindex: "0", "aria-label": "Body" }, body),
      el("div", { class: "row" },
        whole === undefined && letter.body_characters > letter.body.length
          ? el("button", { type: "button", onclick: () => place.done(showWhole(state, letter)).then(place.redraw) }, `Show all ${bytes(letter.body_characters)}`) : null,
        place.actions ? el("button", { type: "button", onclick: () => place.done(act("redrive", state.site, { queue: state.queue, ids: [letter.id] }), "It goes back.") }, "Redrive this") : null)));
}

async function showWhole(state, letter) {
  const found = await ask("dead-letter", state.site, { queue: state.queue, id: letter.id, looked_at: state.mostLooked });
  state.whole.set(letter.id, found.body);
}
