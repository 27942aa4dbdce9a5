// The frame around the pages: which one is shown, of which site, and whether it is live.
//
// A page's address is `#/NAME?site=SITE&…`. Its module has
//   topics(place)   what it follows, as `READING@SITE`, with `?name=value` after it
//   render(place)   what it shows, as nodes; called when the place or a reading changes
// and a place has `sites`, `site` (one of them), `query` (URLSearchParams), `actions` (whether any are allowed),
// `readings` (by topic: `document` or `error`), `go(changes)`, `href(name, changes)`, `notice(text, kind)`, `redraw()`,
// `done(doing, said)`.

import { el, show } from "./dom.js";
import { follow } from "./stream.js";

// In the navigation's order. Each is a module of `pages/` that is loaded once somebody opens it.
const PAGES = ["Overview", "Rendezvous", "Splitting", "Federation", "Pipeline", "Dead letters", "Log"].map((title) => ({
  title,
  name: title.toLowerCase().replace(" ", "-"),
}));
const LIVE = { live: "live", connecting: "connecting…", paused: "paused" };
const NOTICE_MS = 8_000;

const main = document.getElementById("main");
const state = { watched: null, page: null, module: null, place: null, close: null, topics: "" };

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: path || PAGES[0].name, query: new URLSearchParams(query ?? "") };
}

function href(name, changes = {}) {
  const query = new URLSearchParams();
  const site = state.place?.query.get("site");
  if (site && !("site" in changes)) query.set("site", site);
  for (const [key, value] of Object.entries(changes)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  return `#/${name}${text ? `?${text}` : ""}`;
}

function placed(name, query) {
  const sites = state.watched.sites.map((each, number) => ({ ...each, number }));
  const site = sites.find((each) => each.name === query.get("site")) ?? sites[0];
  const kept = state.place && state.page?.name === name ? state.place.readings : new Map();
  return {
    sites,
    site,
    query,
    actions: state.watched.actions,
    readings: kept,
    href,
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
    notice,
    done,
    redraw: draw,
  };
}

async function route() {
  const { name, query } = address();
  const page = PAGES.find((each) => each.name === name);
  const isNew = page !== state.page;
  if (!page) {
    state.close?.();
    Object.assign(state, { page: null, module: null, topics: "" });
    document.title = "No such page · Sluice";
    show(main, el("h1", { tabindex: "-1" }, "No such page"), el("p", {}, el("a", { href: `#/${PAGES[0].name}` }, PAGES[0].title)));
    return;
  }
  const module = await import(`./pages/${page.name}.js`);
  if (address().name !== name) return; // somebody has gone on meanwhile
  state.place = placed(name, query);
  Object.assign(state, { page, module });
  document.title = `${page.title} · Sluice`;
  frame();
  const topics = module.topics(state.place);
  if (isNew || topics.join() !== state.topics) {
    state.close?.();
    for (const topic of [...state.place.readings.keys()]) if (!topics.includes(topic)) state.place.readings.delete(topic);
    state.topics = topics.join();
    if (isNew) main.replaceChildren();
    draw();
    state.close = follow(topics, told, live);
  } else {
    draw();
  }
  if (isNew && state.shown) main.querySelector("h1")?.focus({ preventScroll: true });
  if (isNew) window.scrollTo(0, 0);
  state.shown = true;
}

function told(reading) {
  const before = state.place.readings.get(reading.topic);
  // What fails now was there a moment ago: that stays, with what is wrong.
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

function frame() {
  const { sites, site } = state.place;
  show(
    document.getElementById("pages"),
    el("ul", {}, PAGES.map((page) =>
      el("li", { "data-key": page.name }, el("a", { href: href(page.name), "aria-current": page === state.page ? "page" : null }, page.title)),
    )),
  );
  // On a narrow screen the pages are a strip that scrolls by itself.
  document.querySelector("#pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const choose = (event) => state.place.go({ site: event.target.value });
  show(
    document.getElementById("chooser"),
    sites.length > 1
      ? el("label", { class: "field" }, el("span", { class: "quiet" }, "Site"),
          el("select", { onchange: choose }, sites.map((each) =>
            el("option", { value: each.name, selected: each === site }, each.name))))
      : el("span", { class: "quiet" }, site?.name ?? "no site"),
  );
  const select = document.querySelector("#chooser select");
  if (select) select.value = site.name;
}

function live(kind) {
  const node = document.getElementById("live");
  node.dataset.state = kind;
  show(node, LIVE[kind], state.watched?.actions ? "" : " · read-only");
}

function notice(text, kind = "note") {
  const node = el("p", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(node);
  setTimeout(() => node.remove(), NOTICE_MS);
}

// Waits for what is done, and says how it went: `said` is a text, or makes one of the answer, or is nothing.
async function done(doing, said = null) {
  try {
    const answer = await doing;
    if (said) notice(typeof said === "function" ? said(answer) : said);
  } catch (error) {
    notice(error.message, "bad");
  }
}

async function begin() {
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  live("connecting");
  try {
    state.watched = await (await fetch("watched")).json();
  } catch {
    live("connecting");
    setTimeout(begin, 2_000);
    return;
  }
  addEventListener("hashchange", route);
  await route();
}

begin();
