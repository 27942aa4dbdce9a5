"""The bytes of each reply to what is malformed or odd, by every method that carries it."""

import base64

import pytest

from tests.hostile.rendezvous_entries import amp, answer, answered, offer, poll, request
from tests.unit.rendezvous.protocol.wire_table import (
    AMP_PATHS,
    ANSWERS,
    BYTES,
    DENIED,
    LEGACY,
    POLL,
    POLLED,
    POLLS,
    clients,
)

CLIENTS = list(clients())


def named(given: object) -> str:
    text = repr(given)
    return text if len(text) < 60 else f"{text[:50]}...{len(text)}"


def error(text: str) -> str:
    """Of these texts none has what JSON escapes, but for quotes."""
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{"error":"{quoted}"}}'


@pytest.mark.parametrize(("body", "text"), CLIENTS, ids=named)
def test_a_client_over_sqs_is_told(body: str, text: str) -> None:
    said = offer(body)  # where a proxy waits
    assert said == f"reply: {error(text)}" if text != DENIED else said.startswith("letter: ")


@pytest.mark.parametrize(
    ("body", "text"), [*((body.encode(), text) for body, text in CLIENTS), *BYTES.items()], ids=named
)
def test_a_client_over_http_and_amp_is_told_the_same(body: bytes, text: str) -> None:
    exchange_over_http = answered(request("POST", "/client", body), proxies=0)
    assert exchange_over_http == ("400" if len(body) > 100_000 else f"200 {error(text)}")
    assert amp("0/" + base64.urlsafe_b64encode(body).decode().rstrip("=")) == error(text)


@pytest.mark.parametrize("text", ["1.0\n", "x"])
@pytest.mark.parametrize(("size", "status"), [(100_000, "200"), (100_001, "400")])
def test_a_clients_body_has_a_limit_over_http(text: str, size: int, status: str) -> None:
    assert answered(request("POST", "/client", text.ljust(size).encode()), proxies=0).split()[0] == status


@pytest.mark.parametrize(("given", "status"), LEGACY.items(), ids=named)
def test_the_legacy_forms_faults_are_statuses(given: tuple[str, str | None], status: int) -> None:
    body, nat = given
    headers = {} if nat is None else {"Snowflake-NAT-Type": nat}
    assert answered(request("POST", "/client", body.encode(), headers=headers), proxies=0) == str(status)


POSTED = [
    *POLLS.items(),
    *(
        ("{{{}}}".format(",".join(f'"{key}":{each}' for key, each in (POLL | {name: value}).items())).encode(), said)
        for name, replies in POLLED.items()
        for said, values in replies.items()
        for value in values
    ),
]


@pytest.mark.parametrize(("body", "said"), POSTED, ids=named)
def test_a_proxys_poll_is_told(body: bytes, said: str | None) -> None:
    assert poll(body) == ("400" if said is None else f"200 {said}")


@pytest.mark.parametrize(("body", "said"), ANSWERS.items(), ids=named)
def test_a_proxys_answer_is_told(body: str, said: str | None) -> None:
    assert answered(request("POST", "/answer", body.encode()), proxies=0) == ("400" if said is None else f"200 {said}")


@pytest.mark.parametrize(("path", "text"), AMP_PATHS.items(), ids=named)
def test_an_amp_path_is_told(path: str, text: str) -> None:
    assert amp(path) == error(text)


def test_an_answer_reaches_its_client_byte_for_byte() -> None:
    """What JSON needn't escape stays, and what Go escapes is escaped."""
    text = r"{\"type\":\"answer\",\"sdp\":\"a=candidate é€\\r\\n\\u003c" + "\u003c\u003e\u0026\u2028\U0001f469" + r"\"}"
    body = f'{{"Version":"1.3","Sid":"the proxy that holds a poll","Answer":"{text}"}}'
    written = text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026").replace("\u2028", r"\u2028")
    assert answer(body.encode()) == f'200 {{"Status":"success"}}, and the client has it: {{"answer":"{written}"}}'


def test_the_tables_are_some_hundreds() -> None:
    cases = len(CLIENTS) + len(BYTES) + len(LEGACY) + len(POSTED) + len(ANSWERS) + len(AMP_PATHS)
    assert cases > 250, cases
