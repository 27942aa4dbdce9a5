// The rendezvous: offers with their outcomes and answer times, polls, and pools of proxies.

import { el } from "../dom.js";
import { definePage, drawBadge, drawBars, drawFacts, drawSection, drawStat, drawStats, drawTable, drawTroubles } from "../widgets.js";
import { formatFraction, formatMilliseconds, formatNumber, formatTime, parseTraceId } from "../words.js";

const MOST = 12; // bars of a label; its other values share one bar
const OUTCOMES = { matched: "Answered", denied: "Denied", timeout: "Timed out" };
const POLLS = { PollsMatched: "matched", PollsIdle: "idle", PollsDeferred: "deferred", PollsRefused: "refused", PollsLost: "lost", AnswersTooLate: "answers too late" };

export const { topics, render } = definePage("rendezvous", drawPage);

function drawPage(place, found) {
  const { status, today, latency } = found;
  return [
    drawTroubles(found),
    drawSection("Now",
      drawStats(
        drawStat("Offers waiting", status.offers_queue.visible, { name: "waiting" }),
        drawStat("In flight", status.offers_queue.in_flight, { name: "in-flight" }),
        drawStat("Offers in two minutes", Object.values(status.recent_offers).reduce((all, count) => all + count, 0), { name: "recent" }),
        drawStat("Offer to answer, median", formatMilliseconds(latency?.median_ms), { name: "median" }),
        drawStat("Offer to answer, 95th percentile", formatMilliseconds(latency?.p95_ms), { name: "p95" }),
        drawStat("Dead letters", status.dead_letters.count, { name: "dead", kind: status.dead_letters.count ? "bad" : "" })),
      drawFacts(...Object.entries(status.recent_offers)),
      el("p", { class: "quiet" }, "Broker ", el("code", {}, status.broker_url))),
    el("div", { class: "cards", "data-key": "today" }, today ? [
      drawSection("Offers today by outcome", drawBars("Offers by outcome", Object.entries(today.offers).map(([name, value]) => [OUTCOMES[name] ?? name, value]))),
      drawSection("Offers today by country", drawBars("Offers by country", listLargest(today.by_country))),
      drawSection("Offers today by NAT", drawBars("Offers by NAT", listLargest(today.by_nat))),
      drawSection("Offers today by method", drawBars("Offers by method", listLargest(today.by_method))),
    ] : null, drawPools(found), drawPolls(found)),
    drawLatest(found, place),
  ];
}

function listLargest(byValue) {
  const all = Object.entries(byValue).map(([value, outcomes]) => [value, Object.values(outcomes).reduce((sum, count) => sum + count, 0)]);
  const rest = all.slice(MOST).reduce((sum, [, count]) => sum + count, 0);
  return rest ? [...all.slice(0, MOST), [`${formatNumber(all.length - MOST)} others`, rest]] : all;
}

function drawPools(found) {
  return drawSection("Pools of proxies",
    drawTable("Pools of proxies",
      [{ name: "Pool" }, { name: "Held polls", number: true }, { name: "Proxies", number: true }, { name: "Polls a second", number: true }, { name: "Next poll after", number: true }],
      found.pools.map((pool) => [pool.pool, pool.held, formatNumber(pool.population === null ? null : Math.round(pool.population)), formatFraction(pool.polls_per_s), formatMilliseconds(pool.next_poll_ms)]),
      { key: (_, at) => found.pools[at].pool }),
    el("p", { class: "quiet" }, "Held polls wait for an offer now. The number of proxies is estimated from the last minutes' polls."));
}

function drawPolls(found) {
  const { polls: counted, today } = found;
  return drawSection("Polls today",
    counted ? drawBars("Polls", Object.entries(counted).map(([name, value]) => [POLLS[name] ?? name, value ?? 0])) : null,
    today ? drawFacts(...Object.entries(today.proxies.by_nat).map(([nat, value]) => [`polls, NAT ${nat}`, value])) : null,
    today ? drawFacts(["addresses", Object.values(today.proxies.addresses_by_country).reduce((all, count) => all + count, 0)]) : null);
}

function drawLatest(found, place) {
  return drawSection("Last offers",
    found.latest === null ? el("p", { class: "quiet" }, "Not read yet.") : drawTable("Last offers",
      [{ name: "Offered" }, { name: "State" }, { name: "Answered after", number: true }, { name: "Country" }, { name: "NAT" }, { name: "Method" }, { name: "Answered by" }, { name: "Trace" }],
      found.latest.map((offer) => [
        el("time", { datetime: new Date(offer.sent_at_ms).toISOString(), title: formatTime(offer.sent_at_ms) }, formatTime(offer.sent_at_ms).slice(11)),
        drawBadge(offer.state), formatMilliseconds(offer.answered_ms), offer.country, offer.nat, offer.method,
        [offer.proxy_type, offer.proxy_nat, offer.proxy_country].filter(Boolean).join(", "),
        offer.trace ? el("a", { href: place.buildHref("log", { trace: parseTraceId(offer.trace) }) }, "log") : "",
      ]), { empty: "None in the last minutes." }),
    el("p", { class: "quiet" }, "The offers of about the last two minutes, without addresses."));
}
