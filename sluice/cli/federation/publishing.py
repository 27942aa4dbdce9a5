"""Implements `sluice publish` and `sluice consume`: sends messages to an exchange, and receives those of a queue."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import uuid4

import typer
from msgspec.structs import replace

from sluice.aws.deployment import NotUsable, read_stack_outputs
from sluice.aws.federation.publisher import Publisher, PublishRequest
from sluice.aws.queues import ConsumedQueue
from sluice.cli.completion import complete_bound_queues, complete_exchanges
from sluice.cli.output import is_json, print_result, show_json
from sluice.cli.sites import SiteCommands, SiteText
from sluice.cli.terminal import print_note
from sluice.errors import BadConfiguration, CallFailed, Malformed, RequestRefused
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Metadata, OpenedAttributes, open_attributes
from sluice.federation.matching.typed_values import collect_headers, to_json
from sluice.message import Message
from sluice.operator.federated_sites import find_bound_queues, open_named
from sluice.operator.messages import parse_attributes, parse_typed_values
from sluice.operator.queues import find_queue_url
from sluice.operator.site_names import SiteName

MAX_COUNT = 1_000_000
LONG_POLL_S = 20
INGRESS, FIFO_INGRESS = "IngressUrl", "FifoIngressUrl"
STACK = "SluiceFederation"

app = SiteCommands()


@app.command()
def publish(
    site: SiteText,
    exchange: Annotated[str, typer.Argument(help="Exchange of the site.", autocompletion=complete_exchanges)],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The routing key.")] = "",
    body: Annotated[str, typer.Argument(metavar="BODY", help="The text; - is standard input.")] = "-",
    *,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header; VALUE is a JSON scalar, else text. NAME alone is void."),
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:TYPE]=VALUE", help="TYPE: String, Number or base64 Binary.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds after which an undelivered message is dropped.")
    ] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Keep the order of each group.")] = False,
    group: Annotated[
        str | None, typer.Option(help="The message group.", show_default="with --fifo, one per exchange and key")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of copies to publish.")] = 1,
) -> None:
    """Publish a message to an exchange of a site. If the exchange doesn't exist, nothing is published."""
    headers, attributes = (
        parse_typed_values(header or [], option="--header"),
        parse_attributes(attribute or [], option="--attribute"),
    )
    text = _read_standard_input() if body == "-" else body
    name = SiteName.parse(site)
    connection = name.connect()
    outputs, output = read_stack_outputs(connection, STACK), FIFO_INGRESS if fifo else INGRESS
    if output not in outputs:
        raise NotUsable(f"stack {STACK} has no output {output}: finish its deployment with `make deploy`")
    publisher = Publisher(outputs[output], connection.client("sqs"))
    ttl_ms = None if ttl is None else round(ttl * 1000)
    request = PublishRequest(
        exchange=exchange, key=key, body=text, headers=headers, attributes=attributes, ttl_ms=ttl_ms, group=group
    )
    sent = open_attributes(request.to_message(fifo=fifo).attributes)
    typed = sent.metadata.headers if sent.metadata else {}
    publication = Publication(exchange=exchange, key=key, headers=collect_headers(sent.attributes, typed))
    # A message to an unknown exchange would become a dead letter. Users who may only send to the ingress can't query
    # the site: they get a note, and the message is published without this check.
    is_routed = True
    try:
        is_routed = bool(find_bound_queues(open_named(name), publication))
    except (CallFailed, RequestRefused, Malformed) as error:
        print_note(f"not checked whether {name} has an exchange {exchange}: {error}")
    published = publisher.publish_all(replace(request, deduplication_id=uuid4().hex) for _ in range(count))
    print_result({"published": published}, f"{published} published to {exchange}")
    if not is_routed:
        print_note(
            f"no queue gets it: {exchange} has no binding that matches, so it is dropped as unroutable; see "
            f"`sluice binding list {site} {exchange}`"
        )


def _read_standard_input() -> str:
    if sys.stdin.isatty():
        raise BadConfiguration("no body: pass it after the key, or on standard input")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"standard input is not UTF-8 text: {error}") from error


@app.command()
def consume(
    site: SiteText,
    queue: Annotated[
        str,
        typer.Argument(help="A queue's URL, or name in cdk.json or SQS.", autocompletion=complete_bound_queues),
    ],
    *,
    count: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Maximum number of messages.", show_default="all")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Stop after this many seconds without a message.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Print the messages but leave them in the queue.")] = False,
) -> None:
    """Print messages of a queue and delete them. With --json, one object per line.

    Exit code 1 if there were fewer messages than --count.
    """
    connection = SiteName.parse(site).connect()
    consumer = ConsumedQueue(connection.client("sqs"), find_queue_url(connection, queue))
    kept_messages: list[Message] = []
    shown = 0
    try:
        for message in _receive_messages(consumer, count, wait_s=wait):
            if is_json():
                show_json(build_message_document(message))
            else:
                typer.echo(message.body)
            shown += 1
            # A message is deleted after it is printed, so that a crash in between doesn't lose the message.
            if keep:
                kept_messages.append(message)
            else:
                consumer.delete([message])
    finally:
        consumer.release(kept_messages)
    if count is not None and shown < count:
        print_note(f"only {shown} of {count} messages: no more arrived within {wait:g} s")
        raise typer.Exit(1)


def _receive_messages(consumer: "ConsumedQueue", count: int | None, *, wait_s: float) -> Iterator[Message]:
    left = MAX_COUNT if count is None else count
    deadline = time.monotonic() + wait_s
    while left > 0:
        wait = min(max(deadline - time.monotonic(), 0), LONG_POLL_S)
        received = consumer.receive(most=left, wait_s=-int(-wait // 1))
        if received:
            yield from received
            left -= len(received)
            deadline = time.monotonic() + wait_s
        elif time.monotonic() >= deadline:
            return


def build_message_document(message: Message) -> dict[str, Any]:
    """Format a message for `--json`. If its attribute `x-qpid` is malformed, add the error and show all attributes."""
    error: dict[str, str] = {}
    try:
        opened = open_attributes(message.attributes)
    except Malformed as fault:
        opened, error = OpenedAttributes(attributes=message.attributes, metadata=None), {"error": str(fault)}
    metadata = opened.metadata or Metadata()
    return {
        "body": message.body,
        "exchange": metadata.exchange,
        "key": metadata.key,
        "trace": list(metadata.trace),
        "id": metadata.message_id,
        "ttl_ms": metadata.ttl_ms,
        "group": message.group_id,
        "headers": to_json(collect_headers(opened.attributes, metadata.headers)),
    } | error
