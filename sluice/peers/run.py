"""Volunteers as a program runs them: several polls at once, one session, a clean end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from sluice.peers.channels import Network
from sluice.peers.services import Echo, Relay, Service
from sluice.peers.volunteer import Volunteer, VolunteerEvent, VolunteerLimits, VolunteerStep
from sluice.rendezvous.protocol.matching import Nat


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChoice:
    """What is done with clients' bytes: echo, or the relay with these limits."""

    echo: bool = True
    relay_pattern: str = "snowflake.torproject.net$"
    allow_plain: bool = False
    allow_private: bool = False

    def over(self, session: aiohttp.ClientSession) -> Service:
        """Make the service, ready to serve over this session."""
        if self.echo:
            return Echo()
        return Relay(
            session,
            relay_pattern=self.relay_pattern,
            allow_plain=self.allow_plain,
            allow_private=self.allow_private,
        )


async def run_volunteers(
    broker_url: str,
    service: ServiceChoice,
    *,
    polls: int,
    network: Network,
    nat: Nat,
    limits: VolunteerLimits,
    on_event: Callable[[VolunteerEvent], None],
    until: Awaitable[None],
) -> Counter[VolunteerStep]:
    """Run `polls` volunteers until `until` is done, and every connection is closed. Returns what happened how often."""
    async with aiohttp.ClientSession() as session:
        volunteers = [
            Volunteer(
                session,
                broker_url,
                service.over(session),
                network=network,
                nat=nat,
                limits=limits,
                on_event=on_event,
            )
            for _ in range(polls)
        ]
        running = [asyncio.create_task(volunteer.run()) for volunteer in volunteers]
        try:
            await until
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return sum((volunteer.counts for volunteer in volunteers), Counter[VolunteerStep]())
