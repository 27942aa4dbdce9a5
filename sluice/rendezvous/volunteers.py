"""Serves proxies: gives a poll a waiting offer, or holds the poll until an offer arrives, and forwards answers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.broker import RendezvousDependencies
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    HOLD_MS,
    PATIENCE_MS,
    Match,
    OfferMethod,
    OpenOffer,
    Profile,
    WaitingProxy,
    choose_shard,
    select_pool_for_proxy,
)
from sluice.rendezvous.protocol.messages import (
    NEXT_POLL_REFUSED_MS,
    Poll,
    ProxyAnswer,
    RelayPattern,
    write_answer_reply,
    write_poll_reply,
)
from sluice.rendezvous.protocol.pace import COOLDOWN, draw_interval, may_take_offer

ARRIVES_WITHIN_MS = 3_000  # A mailbox message arrives within this time after its match.
MAX_MATCHES = 100  # An environment remembers at most this many matches.
MAX_TRIED_OFFERS = 5  # A poll tries this many waiting offers, the oldest first, as other polls may take some of these.


class Volunteers(msgspec.Struct, frozen=True, kw_only=True):
    """Serves one request at a time. Raises the errors of requests to AWS.

    At most `held_proxies_max` polls are held at a time; without offers, `held_proxies_min` polls on a day's average.
    `delete_message` deletes a message from the offers queue, by its receipt handle.
    """

    site: RendezvousDependencies
    mailbox: Mailbox
    allowed_relay_pattern: RelayPattern
    held_proxies_min: int
    held_proxies_max: int
    delete_message: Callable[[str], None]
    _matches: dict[str, Match] = msgspec.field(default_factory=dict)  # unanswered matches by Sid

    def poll(self, poll: Poll, *, address: str) -> tuple[End, str]:
        """Serve a poll from `address`, within about ten seconds. Returns how the poll ended, and the body."""
        site = self.site
        profile, polled_at_ms = site.recorder.build_profile(poll, address=address), site.now_ms()
        end, body = self._match_poll(poll, profile)
        site.recorder.record_poll(poll, profile, end, polled_at_ms=polled_at_ms)
        return end, body

    def _match_poll(self, poll: Poll, profile: Profile) -> tuple[End, str]:
        site, pacing, address = self.site, self.site.pacing, profile.address
        if poll.relay_pattern is None or not poll.relay_pattern.covers(self.allowed_relay_pattern):
            next_poll_ms = draw_interval(NEXT_POLL_REFUSED_MS, site.random())
            return End.POLL_REFUSED, write_poll_reply(End.POLL_REFUSED, next_poll_ms=next_poll_ms)
        pool, now_ms, pace = select_pool_for_proxy(poll.nat), site.now_ms(), pacing.get_pace()
        interval_ms = pace.draw_next_poll_ms(pool, site.random())
        is_held = site.random() < pace.compute_hold_fraction(
            pool, on_average=self.held_proxies_min, at_most=self.held_proxies_max
        )
        cooldown_ms = (HOLD_MS if is_held else 0) + round(COOLDOWN * interval_ms)
        elapsed_fraction = pacing.start_cooldown(address, cooldown_ms)
        if is_held and elapsed_fraction >= 1:
            elapsed_fraction = pacing.confirm(address, cooldown_ms, is_held=True)
        sid = hash_sid(poll.sid)
        proxy = WaitingProxy(
            poll_id=site.new_id(),
            sid=sid,
            pool=pool,
            clients=poll.clients,
            polled_at_ms=now_ms,
            profile=profile,
            shard=choose_shard(sid, pace.shards),
        )
        held_ms = 0
        if is_held and elapsed_fraction >= 1:
            end, offer = self._hold_poll(replace(proxy, mailbox=self.mailbox.get_url()))
            pacing.count_hold(site.now_ms() - now_ms)
            held_ms = HOLD_MS
        else:
            waiting = self._list_waiting_offers(proxy)
            if waiting and may_take_offer(elapsed_fraction, waited := waiting[0].compute_waited_fraction(now_ms)):
                elapsed_fraction = min(elapsed_fraction, pacing.confirm(address, cooldown_ms, waited=waited))
            offer = self._take_offer(proxy, waiting, elapsed_fraction=elapsed_fraction)
            end = End.POLL_MATCHED if offer else End.POLL_DEFERRED
        if offer:
            pacing.count_given(pool)
        elif elapsed_fraction >= 1:
            pacing.count_poll(pool, interval_ms=interval_ms + held_ms)
        return end, write_poll_reply(end, next_poll_ms=interval_ms, **offer)

    def _hold_poll(self, proxy: WaitingProxy) -> tuple[End, Mapping[str, str]]:
        """Enter a proxy in its pool and wait for an offer. Returns how the poll ended, and the offer or {}."""
        site = self.site
        site.pools.add_proxy(proxy)
        is_given = False  # A broker that gives the poll an offer also removes the proxy from its pool.
        try:
            # An offer that arrived before the proxy entered its pool didn't find the proxy and now waits, so the poll
            # must look for waiting offers too.
            offer = self._take_offer(proxy, self._list_waiting_offers(proxy, consistent=True))
            if not offer:
                offer = self._receive_offer(proxy, until_ms=proxy.waits_until_ms)
                is_given = bool(offer) or not site.offers.close_poll(proxy)
        finally:
            if not is_given:
                site.pools.remove_proxy(proxy)
        if not offer and is_given:
            # A broker matched the proxy just now, and the broker's mailbox message will still arrive.
            offer = self._receive_offer(proxy, until_ms=site.now_ms() + ARRIVES_WITHIN_MS)
        if not offer:
            return End.POLL_LOST if is_given else End.POLL_IDLE, {}
        return End.POLL_MATCHED, offer

    def _receive_offer(self, proxy: WaitingProxy, *, until_ms: int) -> Mapping[str, str]:
        """Wait for the mailbox message for this poll. Returns its offer, or an empty mapping if no message arrives."""
        try:
            message = self.mailbox.receive_for(proxy.poll_id, until_ms=until_ms)
        except QueueGone:
            return {}
        if not message:
            return {}
        if "reply_to" in message:  # Brokers of earlier versions send no `reply_to`.
            self._remember_match(proxy, Match.parse(message, proxy.profile))
        return {name: message[name] for name in ("offer", "nat", "relay")}

    def _remember_match(self, proxy: WaitingProxy, match: Match) -> None:
        """Remember a match, since this environment probably gets the answer: others are busy while polls are held."""
        if len(self._matches) >= MAX_MATCHES:
            del self._matches[next(iter(self._matches))]
        self._matches[proxy.sid] = match

    def _list_waiting_offers(self, proxy: WaitingProxy, *, consistent: bool = False) -> Sequence[OpenOffer]:
        """List the offers that wait for proxies of this proxy's pool, the oldest first."""
        site, shards = self.site, self.site.pacing.count_shards()
        return site.waiting.read_oldest(
            proxy.pool, now_ms=site.now_ms(), limit=MAX_TRIED_OFFERS, shards=shards, consistent=consistent
        )

    def _take_offer(
        self, proxy: WaitingProxy, waiting: Sequence[OpenOffer], *, elapsed_fraction: float = 1.0
    ) -> Mapping[str, str]:
        """Give the proxy the first offer that it may take and no other poll took. Returns the offer, or {}."""
        site, now_ms = self.site, self.site.now_ms()
        for offer in waiting:
            if not may_take_offer(elapsed_fraction, offer.compute_waited_fraction(now_ms)):
                break  # The proxy may not take younger offers either.
            if not site.waiting.take(offer):
                continue
            if not site.offers.match(offer, proxy, now_ms=now_ms, has_waited=True):
                # The poll got another offer from a broker in the meantime, or its Sid still has an offer to answer.
                site.waiting.add([offer])
                break
            self._remember_match(proxy, Match.parse(offer.for_answer, proxy.profile, has_waited=True))
            return offer.for_proxy
        return {}

    def answer(self, answer: ProxyAnswer, *, address: str) -> End:
        """Send a proxy's answer to its client, if the client still waits. `address` is the proxy's address."""
        site = self.site
        sid = hash_sid(answer.sid)
        known = self._matches.pop(sid, None)
        match = site.offers.answer(sid, token=site.new_id(), now_ms=site.now_ms(), match=known)
        if match is None:
            site.recorder.record_late_answer(address=address)
            return End.ANSWER_TOO_LATE
        site.pacing.count_given(select_pool_for_proxy(match.profile.nat), is_answered=True)
        record = match.record
        if record.method is OfferMethod.SQS:
            body = write_answer_reply(answer.answer)
        else:
            # The client function, which holds the client's request open, reads this mailbox.
            body = json.dumps({"for": record.client_id, "answer": answer.answer})
        try:
            until_ms = min(match.answers_until_ms, site.now_ms() + PATIENCE_MS)
            site.retry_until(until_ms, lambda: site.queues.send(match.reply_to, body))
        except QueueGone:
            return End.ANSWER_TOO_LATE
        if match.has_waited and record.receipt_handle:
            with suppress(CallFailed, QueueGone):  # If this fails, the message is redelivered without effect.
                self.delete_message(record.receipt_handle)
        return End.ANSWER_DELIVERED


def hash_sid(sid: str) -> str:
    """Hash a proxy's Sid to 32 hexadecimal digits, because proxies can send any text as Sid."""
    return hashlib.sha256(sid.encode()).hexdigest()[:32]
