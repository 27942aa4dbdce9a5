// The rendezvous: who offers, who answers, who waits, and how long it takes.

import { el } from "../dom.js";
import { badge, bars, facts, ofReading, section, stat, stats, table, troubles } from "../widgets.js";
import { clock, fraction, milliseconds, number, traceOf } from "../words.js";

const MOST = 12; // values of a label that are drawn; the rest is one bar
const OUTCOMES = { matched: "Answered", denied: "Denied", timeout: "Timed out" };
const POLLS = { PollsMatched: "matched", PollsIdle: "idle", PollsDeferred: "deferred", PollsRefused: "refused", PollsLost: "lost", AnswersTooLate: "answers too late" };

export const { topics, render } = ofReading("rendezvous", whole);

function whole(place, found) {
  const { status, today, latency } = found;
  return [
    troubles(found),
    section("Now",
      stats(
        stat("Offers waiting", status.offers_queue.visible, { name: "waiting" }),
        stat("In flight", status.offers_queue.in_flight, { name: "in-flight" }),
        stat("Offers in two minutes", Object.values(status.recent_offers).reduce((all, each) => all + each, 0), { name: "recent" }),
        stat("Offer to answer, median", milliseconds(latency?.median_ms), { name: "median" }),
        stat("95 of 100 within", milliseconds(latency?.p95_ms), { name: "p95" }),
        stat("Dead letters", status.dead_letters.count, { name: "dead", kind: status.dead_letters.count ? "bad" : "" })),
      facts(...Object.entries(status.recent_offers)),
      el("p", { class: "quiet" }, "Broker ", el("code", {}, status.broker_url))),
    el("div", { class: "cards", "data-key": "today" }, today ? [
      section("Offers today by outcome", bars("Offers by outcome", Object.entries(today.offers).map(([name, value]) => [OUTCOMES[name] ?? name, value]))),
      section("Offers today by country", bars("Offers by country", most(today.by_country))),
      section("Offers today by NAT", bars("Offers by NAT", most(today.by_nat))),
      section("Offers today by method", bars("Offers by method", most(today.by_method))),
    ] : null, pools(found), polls(found)),
    latest(found, place),
  ];
}

function most(byValue) {
  const all = Object.entries(byValue).map(([value, outcomes]) => [value, Object.values(outcomes).reduce((sum, each) => sum + each, 0)]);
  const rest = all.slice(MOST).reduce((sum, [, each]) => sum + each, 0);
  return rest ? [...all.slice(0, MOST), [`${number(all.length - MOST)} others`, rest]] : all;
}

function pools(found) {
  return section("Pools of proxies",
    table("Pools of proxies",
      [{ name: "Pool" }, { name: "Held", number: true }, { name: "Population", number: true }, { name: "Polls a second", number: true }, { name: "Next poll after", number: true }],
      found.pools.map((pool) => [pool.pool, pool.held, number(pool.population === null ? null : Math.round(pool.population)), fraction(pool.polls_per_s), milliseconds(pool.next_poll_ms)]),
      { key: (_, at) => found.pools[at].pool }),
    el("p", { class: "quiet" }, "Held are polls that wait now; the population is who polls, by the last minutes."));
}

function polls(found) {
  const { polls: counted, today } = found;
  return section("Polls today",
    counted ? bars("Polls", Object.entries(counted).map(([name, value]) => [POLLS[name] ?? name, value ?? 0])) : null,
    today ? facts(...Object.entries(today.proxies.by_nat).map(([nat, value]) => [`polls, NAT ${nat}`, value])) : null,
    today ? facts(["addresses", Object.values(today.proxies.addresses_by_country).reduce((all, each) => all + each, 0)]) : null);
}

function latest(found, place) {
  return section("Last offers",
    found.latest === null ? el("p", { class: "quiet" }, "Not known yet.") : table("Last offers",
      [{ name: "Offered" }, { name: "State" }, { name: "Took", number: true }, { name: "Country" }, { name: "NAT" }, { name: "Method" }, { name: "Answered by" }, { name: "Trace" }],
      found.latest.map((offer) => [
        el("time", { datetime: new Date(offer.sent_at_ms).toISOString(), title: clock(offer.sent_at_ms) }, clock(offer.sent_at_ms).slice(11)),
        badge(offer.state), milliseconds(offer.answered_ms), offer.country, offer.nat, offer.method,
        [offer.proxy_type, offer.proxy_nat, offer.proxy_country].filter(Boolean).join(", "),
        offer.trace ? el("a", { href: place.href("log", { trace: traceOf(offer.trace) }) }, "log") : "",
      ]), { empty: "None in the last minutes." }),
    el("p", { class: "quiet" }, "Of the last two minutes or so; no address is in it."));
}
