"""Who uses a rendezvous: clients over SQS, HTTP and an AMP cache, and volunteers' proxies, not all of them good.

They do what Snowflake's programs do. What they are told goes to the `Watch`.
"""

import base64
import ipaddress
import json
import math
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.simulation.kernel.world import World
from tests.simulation.models.lambdas import Function
from tests.simulation.scenarios.rendezvous_watch import (
    ANSWER_QUEUE,
    HEARS_S,
    MAILBOX,
    NO_PROXIES,
    TIMED_OUT,
    Attempt,
    Watch,
    described,
    named,
)

LOOKUPS, RECEIVES, POLL_S = 5, 5, 20
PATTERN = "snowflake.torproject.net$"
POLL_LASTS_S = 16.0  # ten seconds, three for a letter that is late, and what calls take
THINKS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 7.0)  # the last is too late

FIRST_ADDRESS, ADDRESSES = 1 << 24, 7 << 24  # 1.0.0.0 to 7.255.255.255, which are all public

# What is wrong with an offer, and what its client is told.
MALFORMED = (
    ("2.0\n{}", "unsupported message version"),
    ('1.0\n{"nat": "unknown"}', "no supplied offer"),
    ('1.0\n{"offer": OFFER, "fingerprint": "x"}', "cannot decode fingerprint"),
    ('1.0\n{"offer": OFFER, "fingerprint": "2B"}', "cannot decode fingerprint"),
    (
        f'1.0\n{{"offer": OFFER, "fingerprint": "{"00" * 20}"}}',
        "bridge with requested fingerprint is unknown to the broker",
    ),
)
GARBLED = ("", "{", "[]", '{"Version": "1.3"}', '{"Version": "2.0", "Sid": "s"}', '{"Version": "1.3", "Sid": 1}')


class Method(StrEnum):
    """How a client offers."""

    SQS = "sqs"
    HTTP = "http"
    LEGACY = "legacy"
    AMP = "amp"


class Manner(StrEnum):
    """How a proxy behaves."""

    WELL = "well"
    DIES = "dies"  # with an offer in hand
    HANGS_UP = "hangs up"  # while its poll is held
    ANSWERS_TWICE = "answers twice"
    NAMESAKE = "namesake"  # all its polls have one Sid, two of them at once
    STRANGER = "stranger"  # answers what nobody asked it
    GARBLED = "garbled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Everybody, in one world."""

    world: World
    watch: Watch
    proxy: Function
    http: Function  # the clients'
    offers_url: str
    thinks_s: tuple[float, ...] = THINKS_S

    # Clients

    def client(
        self,
        name: str,
        nat: str,
        method: Method,
        *,
        malformed: int | None = None,
        times: int = 1,
        reads_after_s: float = 0.0,
    ) -> None:
        """Offer, over SQS with the same message some times, and wait for the reply; over SQS not before that time."""
        offer = described("offer", name)
        body, refusal = "1.0\n" + json.dumps({"offer": offer, "nat": nat, "fingerprint": ""}), None
        if malformed is not None:
            template, refusal = MALFORMED[malformed]
            body = template.replace("OFFER", json.dumps(offer))
        attempt = Attempt(name=name, nat=nat, began_at=self.world.now, refusal=refusal)
        self.watch.attempts[name] = attempt
        if method is Method.SQS:
            self.world.scheduler.at(self.world.now + reads_after_s + HEARS_S, partial(self.watch.judge, attempt))
            self._over_sqs(attempt, body, times=times, reads_after_s=reads_after_s)
        else:
            self._over_http(attempt, offer, body, method)

    def _over_sqs(self, attempt: Attempt, body: str, *, times: int, reads_after_s: float) -> None:
        sqs = self.world.client("sqs")
        client_id = {"ClientID": {"DataType": "String", "StringValue": attempt.name}}
        for _ in range(times):
            with suppress(ClientError, BotoCoreError):
                sqs.send_message(QueueUrl=self.offers_url, MessageBody=body, MessageAttributes=client_id)
        for _ in range(LOOKUPS):
            self.world.sleep(1)
            with suppress(ClientError, BotoCoreError):
                url = sqs.get_queue_url(QueueName=ANSWER_QUEUE + attempt.name)["QueueUrl"]
                break
        else:
            return
        self.world.sleep(max(attempt.began_at + reads_after_s - self.world.now, 0.0))
        for _ in range(RECEIVES):
            with suppress(ClientError, BotoCoreError):
                found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=POLL_S).get("Messages")
                if found:
                    self.watch.heard(attempt, found[0]["Body"])
                    return

    def _over_http(self, attempt: Attempt, offer: str, body: str, method: Method) -> None:
        attempt.sent = 1
        match method:
            case Method.AMP:
                coded = base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")
                by, status, text = self._ask("GET", f"/amp/client/0/{coded}", about=attempt)
            case Method.LEGACY:
                headers = {"Snowflake-NAT-Type": attempt.nat}
                by, status, text = self._ask("POST", "/client", offer, headers=headers, about=attempt)
            case _:
                by, status, text = self._ask("POST", "/client", body, about=attempt)
        reply = _reply(method, status, text)
        is_late = self.world.now - attempt.began_at > HEARS_S
        if reply is None or is_late:
            self.watch.failed(by, f"{attempt.name} got {status} after {self.world.now - attempt.began_at:.1f} s")
        if reply is not None:
            self.watch.heard(attempt, reply)

    def nobody(self, client_id: str | None) -> None:
        """Send what has no name that a queue could be called after."""
        named_ = {} if client_id is None else {"ClientID": {"DataType": "String", "StringValue": client_id}}
        body = "1.0\n" + json.dumps({"offer": described("offer", "nobody")})
        with suppress(ClientError, BotoCoreError):
            self.world.client("sqs").send_message(QueueUrl=self.offers_url, MessageBody=body, MessageAttributes=named_)

    # Volunteers

    def volunteer(self, name: str, nat: str, manner: Manner, *, pause_s: float, until_s: float = math.inf) -> None:
        """Poll and answer, as is the proxy's manner, up to a time."""
        while self.world.now < until_s:
            sid = f"{name}/{self.watch.requests}"
            match manner:
                case Manner.STRANGER:
                    self._answer_unasked(sid)
                case Manner.GARBLED:
                    self._garble()
                case Manner.HANGS_UP:
                    self.hang_up(sid, nat)
                case Manner.NAMESAKE:
                    self.watch.shared_sids.add(name)
                    self.world.spawn(f"{name}-namesake", partial(self.serve, name, nat, manner))
                    self.serve(name, nat, manner)
                case _:
                    self.serve(sid, nat, manner)
            self.world.sleep(pause_s)

    def serve(self, sid: str, nat: str, manner: Manner) -> None:
        """Poll, and answer what came of it."""
        name = self.poll(sid, nat)
        if name is None or manner is Manner.DIES:
            return
        self.world.sleep(self.world.chance.choice(self.thinks_s))
        for _ in range(2 if manner is Manner.ANSWERS_TWICE else 1):
            self.answer(sid, name)

    def poll(self, sid: str, nat: str) -> str | None:
        """Poll once; the name of the client whose offer it got, or None."""
        return self.polled(sid, nat)[0]

    def polled(self, sid: str, nat: str) -> tuple[str | None, float]:
        """Poll once; the name of the client whose offer it got, or None, and the seconds up to its next poll."""
        began_at = self.world.now
        by, status, text = self._ask("POST", "/proxy", _poll(sid, nat), sender=sid)
        lasted_s = self.world.now - began_at
        if status != 200 or lasted_s > POLL_LASTS_S:
            self.watch.failed(by, f"the poll {sid} got {status} after {lasted_s:.1f} s")
        reply = json.loads(text) if status == 200 else {}
        next_poll_s = reply.get("NextPoll", 0) / 1000
        if reply.get("Status") != "client match":
            return None, next_poll_s
        name = named(reply["Offer"])[0]
        self.watch.given(name, sid)
        return name, next_poll_s

    def answer(self, sid: str, name: str) -> None:
        """Answer the offer of this client under this Sid."""
        body = json.dumps({"Version": "1.3", "Sid": sid, "Answer": described("answer", name, sid)})
        by, status, text = self._ask("POST", "/answer", body, sender=sid, about=self.watch.attempts[name])
        if status != 200:
            self.watch.failed(by, f"the answer of {sid} got {status}")
        elif json.loads(text)["Status"] == "success" and sid not in self.watch.shared_sids:
            self.watch.taken(name, by=by)

    def hang_up(self, sid: str, nat: str) -> None:
        """Poll, and don't wait for what comes of it: the function does."""
        self.watch.requests += 1
        self.world.lambdas.run(self.proxy, _request("POST", "/proxy", _poll(sid, nat), sender=sid), lambda _: None)

    def _answer_unasked(self, sid: str) -> None:
        body = json.dumps({"Version": "1.3", "Sid": sid, "Answer": described("answer", "nobody", sid)})
        by, status, text = self._ask("POST", "/answer", body)
        if status != 200:
            self.watch.failed(by, f"the answer of {sid} got {status}")
        else:
            self.world.check(text == '{"Status":"client gone"}', f"an answer that nobody asked for got {text}")

    def _garble(self) -> None:
        by, status, _ = self._ask(
            "POST", self.world.chance.choice(["/proxy", "/answer"]), self.world.chance.choice(GARBLED)
        )
        if status != 400:
            self.watch.failed(by, f"what can't be read got {status}")

    def vandal(self) -> None:
        """Delete a mailbox, as somebody might who cleans up."""
        mailboxes = [queue for queue in self.world.sqs.queues.values() if queue.name.startswith(MAILBOX)]
        if mailboxes:
            self.watch.may_fail += 1
            self.world.sqs.remove(self.world.chance.choice(mailboxes))

    def _ask(
        self,
        method: str,
        path: str,
        body: str = "",
        *,
        headers: dict[str, str] | None = None,
        sender: str = "",
        about: Attempt | None = None,
    ) -> tuple[str, int, str]:
        """Make a request from the sender's address; by which invocation it was served, its status and its body."""
        function = self.http if path.startswith(("/client", "/amp")) else self.proxy
        by = f"{function.name}-{function.made + 1}"
        self.watch.requests += 1
        if about is not None:
            about.invocations.add(by)
        outcome = self.world.lambdas.invoke_now(function, _request(method, path, body, headers, sender=sender))
        if outcome.error is not None:
            return by, 502, ""
        return by, outcome.answer["statusCode"], outcome.answer["body"]


def _request(
    method: str, path: str, body: str = "", headers: dict[str, str] | None = None, *, sender: str
) -> dict[str, Any]:
    """Spell a function URL's event. Each sender has an address; a name's polls, whose Sids differ, have the same."""
    address = ipaddress.IPv4Address(FIRST_ADDRESS + zlib.crc32(sender.partition("/")[0].encode()) % ADDRESSES)
    return {
        "requestContext": {"http": {"method": method, "sourceIp": str(address)}},
        "rawPath": path,
        "headers": headers or {},
        "body": body,
    }


def _poll(sid: str, nat: str) -> str:
    polled = {"Sid": sid, "Version": "1.3", "Type": "standalone", "NAT": nat, "Clients": 0}
    return json.dumps(polled | {"AcceptedRelayPattern": PATTERN})


def _reply(method: Method, status: int, text: str) -> str | None:
    """Read what a client over HTTP is told, as one over SQS would be; None where the request failed."""
    if method is Method.LEGACY:
        said = {200: {"answer": text}, 503: {"error": NO_PROXIES}, 504: {"error": TIMED_OUT}}.get(status)
        return None if said is None else json.dumps(said)
    if status != 200:
        return None
    if method is Method.HTTP:
        return text
    words = "".join(re.findall(r"<pre>\n(.*?)\n</pre>", text, re.DOTALL)).split()
    return base64.b64decode("".join(words)[1:]).decode()
