"""`sluice split`: sessions that take a part of a queue's traffic, from their start to their end."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from sluice.aws.connections import Connection, program_variables, undirected
from sluice.aws.deployment import stack_output
from sluice.building.project import need
from sluice.cli.completion import complete_sessions, complete_split_queues
from sluice.cli.output import console, is_json, show_json, show_table, tell
from sluice.cli.sites import PlainCommand, SiteTyper
from sluice.cli.splitting.filters import filters_of
from sluice.cli.splitting.handlers import EventQueue, LocalFunction, serve
from sluice.cli.splitting.heartbeats import kept_by_another
from sluice.cli.splitting.programs import run_program, variables
from sluice.cli.splitting.registration import BadRegistration, Registration, registration, section_of
from sluice.cli.splitting.resources import imported
from sluice.cli.splitting.tables import (
    document_of,
    new_messages,
    seconds_of,
    show_session,
    show_sessions,
    show_trials,
    shown,
)
from sluice.cli.terminal import SIGNALLED, note
from sluice.operator.documents import documents_of
from sluice.operator.functions import ControlClient
from sluice.operator.logs import FunctionLogs
from sluice.operator.messages import sight_of_file
from sluice.operator.queues import look
from sluice.operator.sessions import OpenSession, owner_here, session, session_document
from sluice.operator.site_names import SiteOptions
from sluice.splitting.adoption import planned, remarks
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import FindSession, ListQueues, ListSessions, StopSession
from sluice.splitting.routing.trials import tried

WATCH_EVERY_S = 1.0
TAIL_EVERY_S = 2.0  # FilterLogEvents may be asked five times a second, by everybody of an account together
SESSION_LOST = 70  # the exit code for a session that ended under the program: EX_SOFTWARE of sysexits.h

app = SiteTyper()

FilterFile = Annotated[
    Path | None, typer.Option("--filter-file", "-f", help="Filters in YAML or JSON, or a mirrord.json.")
]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="QUEUE:ATTRIBUTE=REGEX", help="An attribute to match; all of a queue's must."),
]
JqFilters = Annotated[
    list[str] | None, typer.Option("--jq", metavar="QUEUE:PROGRAM", help="A jq program whose first boolean decides.")
]
Mirrored = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror",
        metavar="QUEUE",
        help="Copies: the consumer has its messages too.",
        autocompletion=complete_split_queues,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        help="What your messages carry as sluice-session; else the session's id. Filters have it for {{ key }}; where "
        "none is given, what carries mirrord-session=KEY is yours."
    ),
]
TimeLimit = Annotated[int | None, typer.Option("--time-limit", min=1, help="Seconds until it ends by itself.")]


@app.command("list")
def list_queues(*, site: SiteOptions) -> None:
    """List the queues that can be split: where producers send to, what the consumer reads, what policies ask."""
    queues = _client(site).ask(ListQueues())
    rows = [(each.queue_id, each.source, each.main, "; ".join(each.rules)) for each in queues]
    columns = ("queue", "source", "main", "sessions")
    tell([session_document(queue) for queue in queues], lambda: show_table(columns, rows))


@app.command()
def register(
    queue_id: Annotated[str, typer.Argument(help="What the team calls it; no colon, no *.")],
    *,
    fifo: Annotated[bool, typer.Option("--fifo", help="A FIFO queue.")] = False,
    sns: Annotated[bool, typer.Option("--sns", help="Its bodies are SNS notifications.")] = False,
    s3_event: Annotated[bool, typer.Option("--s3-event", help="Its bodies are S3 event notifications.")] = False,
    source_arn: Annotated[str | None, typer.Option(help="Adopt the queue that producers send to.")] = None,
    main_arn: Annotated[str | None, typer.Option(help="Adopt the queue that the consumer reads.")] = None,
    drain_timeout: Annotated[int | None, typer.Option(min=0, help="Seconds.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of sessions' queues.")] = None,
    sender: Annotated[
        list[str] | None,
        typer.Option(metavar="ARN", help="A topic or bucket that may send to the source."),
    ] = None,
    project: Annotated[Path, typer.Option(help="The folder with cdk.json.")] = Path(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made and allowed, and what is against it.")
    ] = False,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Don't look at the queues to adopt.")] = False,
    site: SiteOptions,
) -> None:
    """Add a queue to cdk.json; the next deploy makes it, or adopts it, and puts the splitter in its path.

    Queues to adopt are looked at first, and what can't work is refused.
    """
    tags = dict(option.partition("=")[::2] for option in tag or [])
    if not all(tags):
        raise typer.BadParameter("--tag is NAME=VALUE")
    given = {
        "fifo": fifo or None,
        "sns": sns or None,
        "s3_event": s3_event or None,
        "existing_source_queue_arn": source_arn,
        "existing_main_queue_arn": main_arn,
        "drain_timeout_s": drain_timeout,
        "tags": tags or None,
        "sender_arns": sender or None,
    }
    queue = {"queue_id": queue_id} | {k: v for k, v in given.items() if v is not None}
    made = registration(project / "cdk.json", queue)
    adopted = {role: arn for role, arn in (("source", source_arn), ("main queue", main_arn)) if arn is not None}
    if adopted and not unchecked:
        _check_adopted(site.connect(), adopted, made)
    if dry_run:
        rows = list(planned(queue_id, adopted, fifo=fifo, senders=sender or (), keys=made.keys))
        planned_ = {"planned": [{"what": what, "how": how} for what, how in rows]}
        tell(planned_, lambda: show_table(("would be made", ""), rows))
        return
    made.write()
    said = f"{queue_id} is in cdk.json: deploy it with `make deploy`, or `sluice local up`"
    tell({"registered": queue}, said)


def _check_adopted(connection: Connection, adopted: Mapping[str, str], made: Registration) -> None:
    """Note what is against adopting the queues. Raises `BadRegistration` where that would fail, or lose messages."""
    queues = [look(connection, role, arn) for role, arn in adopted.items()]
    found = list(remarks(queues, region=connection.region, window_s=made.window_s, key_arns=made.keys))
    for remark in found:
        note(f"{remark.queue}: {remark.text}")
    against = sum(remark.refuses for remark in found)
    if against:
        raise BadRegistration(f"not registered: {against} of these would fail or lose messages (--unchecked goes on)")


@app.command("import", cls=PlainCommand)
def import_resources(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML or JSON, as kubectl takes or gives it.")],
    *,
    cluster: Annotated[
        str | None, typer.Option(help="Re-point the workloads, which are in this cluster, while queues are split.")
    ] = None,
    by_agent: Annotated[bool, typer.Option("--agent", help="Of --cluster: `sluice split agent` does it.")] = False,
) -> None:
    """Print what stands in cdk.json for mirrord's MirrordWorkloadQueueRegistry and MirrordSplitConfig.

    What can't be taken over is noted on standard error.
    """
    documents = (document for file in files for document in documents_of(file))
    found = imported(documents, cluster=cluster, by_agent=by_agent)
    section = section_of(found.queues.values())
    for text in found.notes:
        note(text)
    tell(section, lambda: typer.echo(json.dumps(section, indent=2)))


@app.command("test", cls=PlainCommand)
def try_filters(
    filter_file: Annotated[Path, typer.Argument(metavar="FILTERS", help="As `start` takes them.")],
    message_file: Annotated[
        Path, typer.Argument(metavar="MESSAGE", help="A message in JSON, as the SQS API or a function's event has it.")
    ],
    *,
    key: Annotated[str | None, typer.Option(help="For {{ key }} in the filters.")] = None,
    sns: Annotated[bool, typer.Option("--sns", help="Its body is an SNS notification.")] = False,
) -> None:
    """Say for each queue of a filter file whether its filter takes a message, and what each condition says.

    The exit code is 0 where one takes it, and 1 where none does.
    """
    filters, sight = filters_of(filter_file, [], key=key), sight_of_file(message_file, envelope=Envelope(sns=sns))
    with closing(JqRunner()) as decide:
        trials = {queue_id: tried(asked.filter, sight, decide=decide) for queue_id, asked in filters.items()}
    tell(trials, lambda: show_trials(trials))
    if not any(trial.matches for trial in trials.values()):
        raise typer.Exit(1)


@app.command()
def start(
    *,
    filter_file: FilterFile = None,
    filters: Filters = None,
    jq: JqFilters = None,
    mirror: Mirrored = None,
    key: Key = None,
    time_limit: TimeLimit = None,
    site: SiteOptions,
) -> None:
    """Start a session, print its queues, and keep it until ctrl-C: without a heartbeat it ends within 30 s."""
    asked = filters_of(filter_file, filters or [], jq=jq or [], mirror=mirror or [], key=key)
    client = _client(site)
    _end_well_on_sigterm()
    with session(client, asked, owner=owner_here(), key=key, time_limit_s=time_limit) as opened:
        tell(session_document(opened.view), lambda: show_session(opened.view))
        if not is_json():
            note("ready; ctrl-C ends it, and what you haven't read goes back to the consumer")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: opened.ended.set())
        opened.ended.wait()
    if opened.reason:
        note(f"the session ended: {opened.reason}")
        raise typer.Exit(1)


def _end_well_on_sigterm() -> None:
    """Also while the session isn't ready yet: it is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))


@app.command()
def status(
    session_id: Annotated[
        str | None, typer.Argument(help="One session; else all of them.", autocompletion=complete_sessions)
    ] = None,
    *,
    site: SiteOptions,
) -> None:
    """Sessions: whose, since when, how far, how many messages, and where their queues are."""
    client = _client(site)
    if session_id is None:
        found = client.ask(ListSessions())
        tell(document_of(found), lambda: show_sessions(found.sessions))
        return
    session = client.ask(FindSession(session_id=session_id))
    tell(session_document(session), lambda: show_session(session))


@app.command()
def watch(*, site: SiteOptions) -> None:
    """Show the same as `status`, kept up to date until ctrl-C: with --json a line whenever something is new."""
    client = _client(site)
    said = None
    while True:
        found = client.ask(ListSessions())
        if not is_json():
            console().clear()
            show_sessions(found.sessions)
        elif said != found:
            show_json(document_of(found))
            said = found
        time.sleep(WATCH_EVERY_S)


@app.command()
def tail(
    session: Annotated[
        str | None, typer.Argument(help="A session's id or key; else all of them.", autocompletion=complete_sessions)
    ] = None,
    *,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Only what is of this queue.", autocompletion=complete_split_queues),
    ] = None,
    since: Annotated[str, typer.Option(metavar="PERIOD", help="From when on: 90s, 5m, 2h, 1d ago.")] = "5m",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until ctrl-C.")] = True,
    site: SiteOptions,
) -> None:
    """Show each message that went to a session: of which queue, to whom, and as what, a line each.

    A message has the id that the queue's producers were told. With --json a line is a document.
    """
    since_ms = int((time.time() - seconds_of(since)) * 1_000)
    connection = site.connect()
    group = stack_output(connection, "SluiceSplitting", "SplitterLogGroupName")
    logs = FunctionLogs(connection.client("logs"), group, since_ms)
    while True:
        for each in new_messages(logs, session=session, queue_id=queue):
            if is_json():
                show_json(each)
            else:
                typer.echo(shown(each))
        if not follow:
            return
        time.sleep(TAIL_EVERY_S)


@app.command()
def stop(
    session_ids: Annotated[
        list[str],
        typer.Argument(metavar="SESSION", help="As `split status` shows it.", autocompletion=complete_sessions),
    ],
    *,
    site: SiteOptions,
) -> None:
    """End sessions, whoever started them. What they haven't read goes back to the deployed consumer."""
    client = _client(site)
    ended = [client.ask(StopSession(session_id=session_id)) for session_id in session_ids]
    said = "\n".join(f"{each.session_id}: {each.status}" for each in ended)
    tell([session_document(session) for session in ended], said)


@app.command(json=False)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The program and its arguments.")
    ] = None,
    *,
    function: Annotated[
        str | None,
        typer.Option("--lambda", metavar="NAME", help="A handler, not a program, with this function's variables."),
    ] = None,
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE.FUNCTION", help="Of --lambda, if not the deployed one's.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=10, help="Of --lambda: messages of one queue that it gets at once, at most.")
    ] = 10,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[VARIABLE=]QUEUE",
            help="A queue, and the variable that the program reads its URL from, or its name if that ends in _NAME.",
            autocompletion=complete_split_queues,
        ),
    ] = None,
    filter_file: FilterFile = None,
    filters: Filters = None,
    jq: JqFilters = None,
    mirror: Mirrored = None,
    key: Key = None,
    time_limit: TimeLimit = None,
    site: SiteOptions,
) -> None:
    """Run a program, or a function's handler, on a session's queues: the session lives as long as that does.

    Without VARIABLE it is SLUICE_QUEUE_URL; the queue's name is in SLUICE_QUEUE_NAME. The program reaches the site that
    the session is at, and nothing else, with credentials that end: docs/splitting.md says which it gets.

    The exit code is the program's; 70 where the session ended under it.

    With --lambda the handler gets the messages as events of SQS in this process, so that breakpoints work, until
    ctrl-C. What it doesn't report as failed is deleted.
    """
    if bool(command) == (function is not None):
        raise typer.BadParameter("either a program after --, or --lambda NAME")
    if function is None and handler is not None:
        raise typer.BadParameter("--handler goes with --lambda")
    if function is not None and queue:
        raise typer.BadParameter("--queue is for programs: a handler gets the messages of all queues of the session")
    asked = filters_of(filter_file, filters or [], jq=jq or [], mirror=mirror or [], key=key)
    connection = site.connect()
    client = ControlClient.of(connection)
    serve = None if function is None else _serving(connection, function, handler, batch_size)
    led = {} if serve else {**undirected(os.environ), **program_variables(connection)}
    _end_well_on_sigterm()
    with session(client, asked, owner=owner_here(), key=key, time_limit_s=time_limit, progress=note) as opened:
        if serve is None:
            code = run_program(command or [], {**led, **variables(opened, queue or [])}, opened)
        else:
            code = serve(opened)
    if opened.reason:
        note(f"the session ended under the program: {opened.reason}")
        code = SESSION_LOST
    raise typer.Exit(code)


@app.command()
def agent(
    *,
    clusters: Annotated[
        list[str],
        typer.Option("--cluster", metavar="CLUSTER[=CONTEXT]", help="A cluster, and its context in the kubeconfig."),
    ],
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="Else KUBECONFIG says where, else it is ~/.kube/config.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do what is to be done now.")] = False,
    site: SiteOptions,
) -> None:
    """Re-point consumers in clusters that Lambda can't reach, for as long as this runs.

    It is for consumers with `agent: true`, whose `cluster` is the one named here. With --json each step is a line.
    """
    need("kubernetes", "kubernetes")
    from sluice.cli.splitting.agents import Agent, contexts_of  # noqa: PLC0415 - kubernetes is an extra

    contexts = contexts_of(clusters)
    running = Agent.of(_client(site), contexts, kubeconfig=kubeconfig)
    if not once:
        note(f"looking after {', '.join(contexts)} until ctrl-C")
    while True:
        wait_s = running.look()
        if once:
            return
        time.sleep(wait_s)


def _serving(
    connection: Connection, function: str, handler: str | None, batch_size: int
) -> Callable[[OpenSession], int]:
    """Load a function's handler; what has it called with a session's messages."""
    caller = dict(os.environ)  # with which heartbeats go on when the handler's own credentials have ended
    loaded = LocalFunction.load(connection, function, handler)

    def serving(opened: OpenSession) -> int:
        queues = [EventQueue.of(connection, opened.url_of(each.queue_id)) for each in opened.view.queues]
        note("ready; ctrl-C ends it, and what you haven't read goes back to the consumer")
        with kept_by_another(opened.client, opened.view.session_id, environment=caller):
            return serve(loaded, queues, opened, most=batch_size)

    return serving


def _client(site: SiteOptions) -> ControlClient:
    return ControlClient.of(site.connect())
