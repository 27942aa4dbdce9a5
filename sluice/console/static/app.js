// Draws the frame around the pages: their navigation, the choice of a site, and the state of the connection.
//
// A page's address is `#/NAME?site=SITE&…`. Its module has
//   topics(place)   returns the topics that it follows: `READING@SITE`, with an optional query `?name=value`
//   render(place)   returns the nodes that it shows; called when the place or a reading changes
// and a place has `sites`, `site` (one of them), `query` (URLSearchParams), `actions` (whether they are allowed),
// `readings` (by topic: `document` or `error`), `go(changes)`, `buildHref(name, changes)`, `redraw()`, and
// `report(promise, text)`.

import { el, show } from "./dom.js";
import { follow } from "./stream.js";

// The pages in the navigation's order. A page's module in `pages/` is loaded when the page is first opened.
const PAGES = ["Overview", "Rendezvous", "Splitting", "Federation", "Pipeline", "Dead letters", "Log"].map((title) => ({
  title,
  name: title.toLowerCase().replace(" ", "-"),
}));
const LIVE = { live: "live", connecting: "connecting…", paused: "paused" };
const NOTICE_MS = 8_000;

const main = document.getElementById("main");
const state = { watched: null, page: null, module: null, place: null, close: null, topics: "" };

function parseAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: path || PAGES[0].name, query: new URLSearchParams(query ?? "") };
}

function buildHref(name, changes = {}) {
  const query = new URLSearchParams();
  const site = state.place?.query.get("site");
  if (site && !("site" in changes)) query.set("site", site);
  for (const [key, value] of Object.entries(changes)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  return `#/${name}${text ? `?${text}` : ""}`;
}

function buildPlace(name, query) {
  const sites = state.watched.sites.map((watched, number) => ({ ...watched, number }));
  const site = sites.find((candidate) => candidate.name === query.get("site")) ?? sites[0];
  const kept = state.place && state.page?.name === name ? state.place.readings : new Map();
  return {
    sites,
    site,
    query,
    actions: state.watched.actions,
    readings: kept,
    buildHref,
    go: (changes, { replace = false } = {}) => {
      const next = new URLSearchParams(query);
      for (const [key, value] of Object.entries(changes)) {
        if (value === null || value === undefined || value === "") next.delete(key);
        else next.set(key, value);
      }
      const hash = `#/${name}?${next}`;
      if (replace) {
        history.replaceState(null, "", hash);
        route();
      } else {
        location.hash = hash;
      }
    },
    report,
    redraw: draw,
  };
}

async function route() {
  const { name, query } = parseAddress();
  const page = PAGES.find((candidate) => candidate.name === name);
  const isNew = page !== state.page;
  if (!page) {
    state.close?.();
    Object.assign(state, { page: null, module: null, topics: "" });
    document.title = "No such page · Sluice";
    show(main, el("h1", { tabindex: "-1" }, "No such page"), el("p", {}, el("a", { href: `#/${PAGES[0].name}` }, PAGES[0].title)));
    return;
  }
  const module = await import(`./pages/${page.name}.js`);
  if (parseAddress().name !== name) return; // the user has opened another page meanwhile
  state.place = buildPlace(name, query);
  Object.assign(state, { page, module });
  document.title = `${page.title} · Sluice`;
  drawFrame();
  const topics = module.topics(state.place);
  if (isNew || topics.join() !== state.topics) {
    state.close?.();
    for (const topic of [...state.place.readings.keys()]) if (!topics.includes(topic)) state.place.readings.delete(topic);
    state.topics = topics.join();
    if (isNew) main.replaceChildren();
    draw();
    state.close = follow(topics, receiveReading, showConnection);
  } else {
    draw();
  }
  if (isNew && state.shown) main.querySelector("h1")?.focus({ preventScroll: true });
  if (isNew) window.scrollTo(0, 0);
  state.shown = true;
}

function receiveReading(reading) {
  const before = state.place.readings.get(reading.topic);
  // If a reading fails, the page keeps the topic's last document and shows the error.
  state.place.readings.set(reading.topic, { document: before?.document, error: null, ...reading, atMs: Date.now() });
  draw();
}

function draw() {
  if (!state.module) return;
  try {
    show(main, el("h1", { tabindex: "-1" }, state.page.title), state.module.render(state.place));
  } catch (error) {
    show(main, el("h1", { tabindex: "-1" }, state.page.title), el("p", { class: "error" }, `This page can't be drawn: ${error.message}`));
    throw error;
  }
}

function drawFrame() {
  const { sites, site } = state.place;
  show(
    document.getElementById("pages"),
    el("ul", {}, PAGES.map((page) =>
      el("li", { "data-key": page.name }, el("a", { href: buildHref(page.name), "aria-current": page === state.page ? "page" : null }, page.title)),
    )),
  );
  // On a narrow screen, the navigation is a strip that scrolls to the current page.
  document.querySelector("#pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const choose = (event) => state.place.go({ site: event.target.value });
  show(
    document.getElementById("chooser"),
    sites.length > 1
      ? el("label", { class: "field" }, el("span", { class: "quiet" }, "Site"),
          el("select", { onchange: choose }, sites.map((option) =>
            el("option", { value: option.name, selected: option === site }, option.name))))
      : el("span", { class: "quiet" }, site?.name ?? "no site"),
  );
  const select = document.querySelector("#chooser select");
  if (select) select.value = site.name;
}

function showConnection(kind) {
  const node = document.getElementById("live");
  node.dataset.state = kind;
  show(node, LIVE[kind], state.watched?.actions ? "" : " · read-only");
}

function showNotice(text, kind = "note") {
  const node = el("p", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(node);
  setTimeout(() => node.remove(), NOTICE_MS);
}

// Awaits an action and shows a notice of its result: `text` is the notice, a function of the answer, or null for none.
async function report(promise, text = null) {
  try {
    const answer = await promise;
    if (text) showNotice(typeof text === "function" ? text(answer) : text);
  } catch (error) {
    showNotice(error.message, "bad");
  }
}

async function begin() {
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  showConnection("connecting");
  try {
    state.watched = await (await fetch("watched")).json();
  } catch {
    showConnection("connecting");
    setTimeout(begin, 2_000);
    return;
  }
  addEventListener("hashchange", route);
  await route();
}

begin();
