// Dead letters by queue and reason: read on request, and redriven or deleted if actions are allowed.

import { el } from "../dom.js";
import { act, ask } from "../stream.js";
import { definePage, drawPager, drawPair, drawSection, drawTable } from "../widgets.js";
import { formatAge, formatBytes, formatNumber, formatTime } from "../words.js";

const PAGE_LETTERS = 50;
const MAX_READ = 10_000; // letters

// The letters and choices of each site's queues, which stay while the user visits other pages.
const states = new Map();

export const { topics, render } = definePage("dead-letters", drawPage);

function drawPage(place, found) {
  const queue = place.query.get("queue");
  const known = found.queues.find((entry) => entry.queue === queue);
  return [
    drawSection("Queues", drawQueues(found, place)),
    queue && !known ? el("p", { class: "error", "data-key": "unknown" }, `${queue} is not a dead-letter queue of this site.`) : null,
    known ? drawLetters(place, known, found.moves.find((move) => move.queue === queue)) : null,
  ];
}

function drawQueues(found, place) {
  return drawTable("Queues of dead letters",
    [{ name: "Queue" }, { name: "Letters", number: true }, { name: "In flight", number: true }, { name: "Last move" }],
    found.queues.map((entry) => [
      el("a", { href: place.buildHref("dead-letters", { queue: entry.queue }), "aria-current": entry.queue === place.query.get("queue") ? "true" : null }, entry.queue),
      formatNumber(entry.visible === null ? null : entry.visible + entry.in_flight), formatNumber(entry.in_flight),
      drawMove(found.moves.find((move) => move.queue === entry.queue)),
    ]), { key: (_, at) => found.queues[at].queue });
}

function describeMove(move) {
  if (!move) return "";
  const done = move.what === "redrive" ? "redriven" : "deleted";
  const result = move.ended ? (move.error ? `failed: ${move.error}` : move.stopped ? "stopped" : "done") : "running…";
  return `${formatNumber(move.moved)} ${done}, ${formatNumber(move.stays)} stay; ${result}`;
}

function drawMove(move) {
  if (!move) return "";
  return [describeMove(move), ", started ", el("time", { datetime: new Date(move.began_ms).toISOString(), title: formatTime(move.began_ms) }, formatAge(move.began_ms))];
}

// One queue

function findState(place, queue) {
  const key = `${place.site.name} ${queue}`;
  if (!states.has(key)) states.set(key, { queue, site: place.site.number, looking: false, found: null, error: null, asked: null, chosen: new Set(), from: 0, whole: new Map(), mostLooked: 1_000, moveSeen: 0 });
  return states.get(key);
}

const listReasons = (place) => place.query.getAll("reason").filter(Boolean);

// Letters that are still in the queue stay chosen and complete, because an ended move also causes a new read.
async function readLetters(place, state) {
  const asked = listReasons(place);
  const isOther = asked.join() !== state.asked;
  Object.assign(state, { looking: true, error: null, asked: asked.join() });
  place.redraw();
  try {
    state.found = await ask("dead-letters", state.site, { queue: state.queue, reasons: asked, looked_at: state.mostLooked });
    const ids = new Set(state.found.letters.map((letter) => letter.id));
    state.chosen = new Set([...state.chosen].filter((id) => ids.has(id)));
    state.whole = new Map([...state.whole].filter(([id]) => ids.has(id)));
    state.from = isOther ? 0 : Math.min(state.from, PAGE_LETTERS * Math.floor(Math.max(0, ids.size - 1) / PAGE_LETTERS));
  } catch (error) {
    state.error = error.message;
    if (isOther) state.found = null;
  }
  state.looking = false;
  place.redraw();
}

function drawLetters(place, held, move) {
  const state = findState(place, held.queue);
  const isOther = state.asked !== listReasons(place).join();
  const hasMoved = move?.ended && state.moveSeen !== move.began_ms;
  // A failed read isn't repeated until the user asks, chooses another reason, or a move ends.
  if (!state.looking && (isOther || hasMoved)) {
    if (move?.ended) state.moveSeen = move.began_ms;
    queueMicrotask(() => readLetters(place, state));
  }
  return drawSection(`Letters of ${held.queue}`,
    el("div", { class: "row" },
      el("button", { type: "button", disabled: state.looking, onclick: () => readLetters(place, state) }, state.looking ? "Looking…" : "Look again"),
      state.found ? el("span", { class: "quiet", role: "status" }, describeLetters(state, held)) : null,
      state.found && state.found.looked_at >= state.mostLooked && state.mostLooked < MAX_READ
        ? el("button", { type: "button", onclick: () => { state.mostLooked = MAX_READ; readLetters(place, state); } }, `Read up to ${formatNumber(MAX_READ)}`) : null),
    state.error ? el("p", { class: "error", role: "alert" }, state.error) : null,
    move && !move.ended ? el("div", { class: "row" }, el("span", { role: "status" }, describeMove(move)),
      el("button", { type: "button", onclick: () => place.report(act("stop-move", state.site, { queue: state.queue }), "The move stops after the current batch.") }, "Stop")) : null,
    state.found ? [drawReasons(place, state), drawActions(place, state), drawList(place, state)] : null);
}

function describeLetters(state, held) {
  const all = held.visible === null ? null : held.visible + held.in_flight;
  return all !== null && all > state.found.looked_at
    ? `${formatNumber(state.found.looked_at)} of about ${formatNumber(all)} letters were read.`
    : `${formatNumber(state.found.looked_at)} letters were read.`;
}

function drawReasons(place, state) {
  const chosen = listReasons(place);
  return drawTable("Reasons", [{ name: "Reason" }, { name: "Letters", number: true }, { name: "Oldest" }, { name: "Source queues" }],
    state.found.reasons.map((entry) => [
      el("a", { href: place.buildHref("dead-letters", { queue: state.queue, reason: chosen.includes(entry.reason) ? null : entry.reason }), "aria-current": chosen.includes(entry.reason) ? "true" : null },
        chosen.includes(entry.reason) ? `${entry.reason} (show all)` : entry.reason),
      entry.letters, el("time", { title: formatTime(entry.oldest_ms) }, formatAge(entry.oldest_ms)),
      Object.entries(entry.sources).map(([source, count]) => `${source || "not recorded"} (${formatNumber(count)})`).join(", "),
    ]), { empty: "There are no dead letters.", key: (_, at) => state.found.reasons[at].reason });
}

function drawActions(place, state) {
  if (!place.actions || !state.found.letters.length) return null;
  const reason = listReasons(place);
  const which = reason.length ? `all of ${reason.join(", ")}` : "all";
  const chosen = [...state.chosen];
  const redrive = (fields) => place.report(act("redrive", state.site, { queue: state.queue, ...fields }), "The letters are being redriven.");
  return el("div", { class: "row" },
    el("button", { type: "button", disabled: !chosen.length, onclick: () => redrive({ ids: chosen }) }, `Redrive ${formatNumber(chosen.length)} selected`),
    el("button", { type: "button", onclick: () => redrive({ reasons: reason }) }, `Redrive ${which}`),
    el("button", { type: "button", class: "danger", disabled: !chosen.length, onclick: () => confirmPurge(place, state, { ids: chosen }, `${formatNumber(chosen.length)} letters`) }, `Purge ${formatNumber(chosen.length)} selected…`),
    el("button", { type: "button", class: "danger", onclick: () => confirmPurge(place, state, { reasons: reason }, `${which} letters`) }, `Purge ${which}…`));
}

function confirmPurge(place, state, fields, what) {
  const input = el("input", { name: "typed", id: "typed", autocomplete: "off", spellcheck: "false" });
  const confirm = el("button", { class: "danger", value: "purge", disabled: true }, "Purge");
  input.addEventListener("input", () => { confirm.disabled = input.value !== state.queue; });
  const dialog = el("dialog", { "aria-labelledby": "purge-title" },
    el("h2", { id: "purge-title" }, `Delete ${what}?`),
    el("p", {}, "Deleted letters can't be restored."),
    el("form", { method: "dialog" },
      el("p", {}, el("label", { for: "typed" }, "Type ", el("code", {}, state.queue), " to continue: "), input),
      el("div", { class: "row" }, confirm, el("button", { value: "cancel", type: "button", onclick: () => dialog.close("cancel") }, "Cancel"))));
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "purge") place.report(act("purge", state.site, { queue: state.queue, typed: input.value, ...fields }), "The letters are being deleted.");
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

function drawList(place, state) {
  const all = state.found.letters;
  const shown = all.slice(state.from, state.from + PAGE_LETTERS);
  const go = (from) => { state.from = from; place.redraw(); };
  return [
    el("ul", { class: "letters" }, shown.map((letter) => drawLetter(place, state, letter))),
    drawPager(state.from, PAGE_LETTERS, all.length, go),
  ];
}

function drawLetter(place, state, letter) {
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
        el("span", { class: "quiet" }, formatAge(letter.died_ms))),
      el("dl", { class: "pairs" },
        drawPair("Id", letter.id), drawPair("Detail", letter.said || "–"), drawPair("Source queue", letter.source || "–"), drawPair("Failed at", formatTime(letter.died_ms)),
        drawPair("Receive count", formatNumber(letter.receives)), letter.group ? drawPair("Group", letter.group) : null,
        Object.entries(letter.attributes).map(([name, value]) => drawPair(name, value || "–"))),
      el("pre", { tabindex: "0", "aria-label": "Body" }, body),
      el("div", { class: "row" },
        whole === undefined && letter.body_characters > letter.body.length
          ? el("button", { type: "button", onclick: () => place.report(readWhole(state, letter)).then(place.redraw) }, `Show all ${formatBytes(letter.body_characters)}`) : null,
        place.actions ? el("button", { type: "button", onclick: () => place.report(act("redrive", state.site, { queue: state.queue, ids: [letter.id] }), "The letter is being redriven.") }, "Redrive this") : null)));
}

async function readWhole(state, letter) {
  const found = await ask("dead-letter", state.site, { queue: state.queue, id: letter.id, looked_at: state.mostLooked });
  state.whole.set(letter.id, found.body);
}
