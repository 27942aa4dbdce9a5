"""Implements `sluice binding`: binds queues of a site to its exchanges, and lists the bindings."""

import json
from typing import Annotated

import typer

from sluice.cli.completion import complete_bound_queues, complete_exchanges, complete_keys
from sluice.cli.federation.queues import FOUND_WITHIN_S, ensure_queue, retry_until_found
from sluice.cli.output import print_result, show_table
from sluice.cli.sites import SiteCommands, SiteText
from sluice.federation.declared import BindingDeclaration
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.typed_values import to_json
from sluice.federation.operations import BindQueue, ListBindings, UnbindQueue
from sluice.operator.federated_sites import open_site, require_exchange
from sluice.operator.messages import parse_typed_values

app = SiteCommands()

Exchange = Annotated[str, typer.Argument(help="Name of the exchange.", autocompletion=complete_exchanges)]
Queue = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="A queue's name in cdk.json or SQS.", autocompletion=complete_bound_queues),
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="A direct exchange's key, or a topic exchange's pattern.", autocompletion=complete_keys
    ),
]


@app.command(quiet=True)
def add(
    site: SiteText,
    exchange: Exchange,
    queue: Queue,
    key: Key = "",
    *,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--argument",
            metavar="NAME=VALUE",
            help="VALUE is a JSON scalar, else text; NAME alone is void. Headers exchanges: x-match=all or any.",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the queue if it doesn't exist, as `queue create` does.")
    ] = False,
) -> None:
    """Bind a queue to an exchange. Repeating the command changes nothing; with other arguments it is refused."""
    arguments = parse_typed_values(argument or [], option="--argument")
    binding = BindingDeclaration.from_binding(Binding(exchange=exchange, queue=queue, key=key, arguments=arguments))
    opened = open_site(site)
    if create:
        # The binding is checked before the queue is created, so that a refused binding leaves no new queue.
        binding.binding().check(require_exchange(opened, exchange)[exchange].type)
        ensure_queue(opened, queue)
    bound = retry_until_found(
        queue, lambda: opened.client.ask(BindQueue.from_declaration(binding)), within_s=FOUND_WITHIN_S * create
    )
    said = f"{queue} is bound to {exchange}" + (f" by {key}" if key else "")
    print_result(bound, said)


@app.command("del", quiet=True)
def delete(site: SiteText, exchange: Exchange, queue: Queue, key: Key = "") -> None:
    """Delete a binding."""
    opened = open_site(site)
    opened.client.ask(UnbindQueue(exchange=exchange, queue=queue, key=key))
    document = {"site": str(opened.name), "exchange": exchange, "queue": queue, "key": key, "done": "deleted"}
    said = f"{queue} is no longer bound to {exchange}" + (f" by {key}" if key else "")
    print_result(document, said)


@app.command("list")
def list_bindings(
    site: SiteText,
    exchange: Annotated[
        str | None, typer.Argument(help="An exchange. Default: all.", autocompletion=complete_exchanges)
    ] = None,
) -> None:
    """List a site's bindings, including those of the bridge queues of its routes."""
    bindings = open_site(site).client.ask(ListBindings(exchange=exchange)).bindings
    texts = [json.dumps(to_json(binding.binding().arguments)) if binding.arguments else "" for binding in bindings]
    rows = [(shown.exchange, shown.queue, shown.key, text) for shown, text in zip(bindings, texts, strict=True)]
    print_result(bindings, lambda: show_table(("exchange", "queue", "key", "arguments"), rows))
