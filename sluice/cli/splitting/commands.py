"""`sluice split`: queues that can be split, and the sessions that receive part of their messages."""

import json
import os
import shutil
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from sluice.aws.connections import build_program_variables, fetch_user_id, remove_aws_variables
from sluice.aws.deployment import read_stack_output
from sluice.building.project import require_modules
from sluice.cli.completion import complete_sessions, complete_split_queues
from sluice.cli.output import is_json, print_result, show_json, show_table
from sluice.cli.sites import PlainCommand, SiteCommands
from sluice.cli.splitting import registration, tables
from sluice.cli.splitting.filters import read_filters
from sluice.cli.splitting.handlers import load_handler
from sluice.cli.splitting.programs import build_queue_options, build_queue_variables, run_program
from sluice.cli.splitting.resources import import_queues
from sluice.cli.terminal import SIGNAL_EXIT_BASE, print_note
from sluice.operator.documents import read_documents
from sluice.operator.functions import ControlClient
from sluice.operator.logs import FunctionLogs
from sluice.operator.messages import read_filter_input
from sluice.operator.sessions import SessionFailed, build_session_document, open_session
from sluice.operator.site_names import SiteOptions
from sluice.splitting.adoption import plan_adoption
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.filters.values import select_filter
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import (
    MAX_LINGER_S,
    EndedSession,
    FindSession,
    ReleaseQueue,
    ShowSplitting,
    StopSession,
)
from sluice.splitting.routing.trials import try_filter

TAIL_INTERVAL_S = 2.0  # CloudWatch Logs allows five calls of FilterLogEvents a second per account.
SESSION_LOST = 70  # This is the exit code if the session ended before the program (EX_SOFTWARE of sysexits.h).

app = SiteCommands()

FilterFile = Annotated[
    Path | None, typer.Option("--filter-file", "-f", help="Filters in YAML, JSON or TOML, or a mirrord.json.")
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="QUEUE:ATTRIBUTE=REGEX",
        help="Take messages whose attribute matches; repeatable, all of a queue's must match.",
    ),
]
JqFilters = Annotated[
    list[str] | None,
    typer.Option("--jq", metavar="QUEUE:PROGRAM", help="Take messages for which a jq program's first boolean is true."),
]
Mirrored = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror",
        metavar="QUEUE",
        help="Mirror: receive copies, the consumer still receives the messages. None with a payload in S3, which your "
        "client may delete, unless --filter names ExtendedPayloadSize.",
        autocompletion=complete_split_queues,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        help="Value of sluice-session on your messages. Default: the session's id. It replaces {{ key }} in filters; "
        "without filters the session takes messages with mirrord-session=KEY."
    ),
]
Name = Annotated[str, typer.Option(help="Name of the session in `split status`, the console and its queues' tags.")]
Linger = Annotated[
    int, typer.Option(min=0, max=MAX_LINGER_S, help="Seconds that consumers stay re-pointed, for the next session.")
]
TimeLimit = Annotated[int | None, typer.Option("--time-limit", min=1, help="Seconds until the session ends by itself.")]


@app.command("list")
def list_queues(*, site: SiteOptions) -> None:
    """List the queues that can be split: the source that producers send to, the main queue that the consumer reads."""
    queues = ControlClient.connect(site.connect()).ask(ShowSplitting()).queues
    rows = [(queue.queue_id, queue.source, queue.main, "; ".join(queue.rules)) for queue in queues]
    columns = ("queue", "source", "main", "policies")
    print_result([build_session_document(queue) for queue in queues], lambda: show_table(columns, rows))


@app.command("register")
def register_queue(
    queue_id: Annotated[str, typer.Argument(help="Id of the queue in filters and commands; without : and *.")],
    *,
    fifo: Annotated[bool, typer.Option("--fifo", help="Make it a FIFO queue.")] = False,
    sns: Annotated[bool, typer.Option("--sns", help="Message bodies are SNS notifications.")] = False,
    s3_event: Annotated[bool, typer.Option("--s3-event", help="Message bodies are S3 event notifications.")] = False,
    source_arn: Annotated[
        str | None, typer.Option(help="Adopt this existing queue as the source that producers send to.")
    ] = None,
    main_arn: Annotated[
        str | None, typer.Option(help="Adopt this existing queue as the main queue that the consumer reads.")
    ] = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=…",
            help="A consumer of the source, re-pointed during sessions; repeatable: "
            f"{', '.join(registration.CONSUMER_FORMS.values())}, or KIND={{…}} with its fields in JSON.",
        ),
    ] = None,
    consumer_follows: Annotated[
        bool, typer.Option("--consumer-follows", help="You will point the consumer to the new main queue yourself.")
    ] = False,
    drain_timeout: Annotated[
        int | None, typer.Option(min=0, help="Longest time in seconds to drain a FIFO queue after its last session.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Tag of the sessions' queues; repeatable.")
    ] = None,
    sender: Annotated[
        list[str] | None,
        typer.Option(metavar="ARN", help="An SNS topic or S3 bucket that may send to the source; repeatable."),
    ] = None,
    project: Annotated[Path, typer.Option(help="Folder of cdk.json.")] = Path(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be created and allowed, and what prevents it.")
    ] = False,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Don't check the queues to adopt.")] = False,
    site: SiteOptions,
) -> None:
    """Add a queue to cdk.json. The next deployment creates or adopts the queue, and the splitter then reads it.

    Queues to adopt are checked first, and refused if splitting them would fail or lose messages. Who reads the source
    is given by --main-arn, --consumer or --consumer-follows.
    """
    registration.check_reader(source_arn, main_arn=main_arn, consumers=consumer or (), follows=consumer_follows)
    tags = dict(option.partition("=")[::2] for option in tag or [])
    if not all(tags):
        raise typer.BadParameter("--tag needs the form NAME=VALUE")
    fields = {
        "fifo": fifo or None,
        "sns": sns or None,
        "s3_event": s3_event or None,
        "existing_source_queue_arn": source_arn,
        "existing_main_queue_arn": main_arn,
        "consumers": [registration.parse_consumer(option) for option in consumer or ()] or None,
        "drain_timeout_s": drain_timeout,
        "tags": tags or None,
        "sender_arns": sender or None,
    }
    queue = {"queue_id": queue_id} | {k: v for k, v in fields.items() if v is not None}
    cdk_json = project / "cdk.json"
    addition = registration.add_queue(cdk_json, queue)
    adopted = {role: arn for role, arn in (("source", source_arn), ("main queue", main_arn)) if arn is not None}
    dead_letters = None if unchecked or not adopted else registration.check_adoption(site.connect(), adopted, addition)
    if dry_run:
        rows = list(
            plan_adoption(
                queue_id,
                adopted,
                fifo=fifo,
                senders=sender or (),
                keys=addition.keys,
                consumers=addition.consumers,
                dead_letters=dead_letters,
            )
        )
        document = {"planned": [{"what": what, "how": how} for what, how in rows]}
        print_result(document, lambda: show_table(("would be created", "how"), rows))
        return
    cdk_json.write_text(json.dumps(addition.document, indent=2) + "\n")
    said = f"{queue_id} was added to cdk.json: deploy it with `make deploy`, or `sluice local up`"
    said += ", then point the consumer to the main queue" if consumer_follows else ""
    print_result({"registered": queue}, said)


@app.command("import", cls=PlainCommand)
def import_resources(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Resources in YAML or JSON, as kubectl reads and writes them."),
    ],
    *,
    cluster: Annotated[
        str | None, typer.Option(help="Re-point the resources' workloads in this cluster while queues are split.")
    ] = None,
    by_agent: Annotated[
        bool, typer.Option("--agent", help="With --cluster: `sluice split agent` re-points them.")
    ] = False,
) -> None:
    """Convert mirrord's MirrordWorkloadQueueRegistry and MirrordSplitConfig to a section of cdk.json, and print it.

    Notes on standard error list the fields that can't be converted.
    """
    documents = (document for file in files for document in read_documents(file))
    result = import_queues(documents, cluster=cluster, by_agent=by_agent)
    section = registration.build_section(result.queues.values())
    for text in result.notes:
        print_note(text)
    print_result(section, lambda: typer.echo(json.dumps(section, indent=2)))


@app.command("test", cls=PlainCommand)
def try_filters(
    filter_file: Annotated[Path, typer.Argument(metavar="FILTERS", help="A file with filters, as for `start`.")],
    message_file: Annotated[
        Path,
        typer.Argument(metavar="MESSAGE", help="A message in JSON, in the form of the SQS API or of a Lambda event."),
    ],
    *,
    key: Annotated[str | None, typer.Option(help="Replaces {{ key }} in the filters.")] = None,
    sns: Annotated[bool, typer.Option("--sns", help="The message body is an SNS notification.")] = False,
) -> None:
    """Test which filters of a file take a message, and print the result of each condition.

    Exit code 0 if a filter takes the message, 1 if none does.
    """
    filters, _ = read_filters(filter_file, [], key=key)
    message = read_filter_input(message_file, envelope=Envelope(sns=sns))
    with closing(JqRunner()) as decide:
        trials = {queue_id: try_filter(queue.filter, message, decide=decide) for queue_id, queue in filters.items()}
    print_result(trials, lambda: tables.show_trials(trials))
    if not any(trial.matches for trial in trials.values()):
        raise typer.Exit(1)


@app.command("start")
def start_session(
    *,
    filter_file: FilterFile = None,
    filters: Filters = None,
    jq: JqFilters = None,
    mirror: Mirrored = None,
    key: Key = None,
    name: Name = "",
    linger: Linger = 0,
    time_limit: TimeLimit = None,
    site: SiteOptions,
) -> None:
    """Start a session, print its queues, and send its heartbeats, without which it ends in 30 seconds, until ctrl-C."""
    by_queue, key = read_filters(filter_file, filters or [], jq=jq or [], mirror=mirror or [], key=key)
    connection = site.connect()
    client, user = ControlClient.connect(connection), fetch_user_id(connection)
    _exit_on_sigterm()
    fields = {"user_id": user, "key": key, "name": name, "linger_s": linger, "time_limit_s": time_limit}
    with open_session(client, by_queue, **fields, progress=print_note) as opened:
        print_result(build_session_document(opened.view), lambda: tables.show_session(opened.view))
        if not is_json():
            print_note("ready; stop with ctrl-C, and messages that you haven't read return to the consumer")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: opened.ended.set())
        opened.ended.wait()
    if opened.reason:
        print_note(f"the session ended: {opened.reason}")
        raise typer.Exit(1)


def _exit_on_sigterm() -> None:
    """Let SIGTERM raise `SystemExit`, so that the session is stopped even if it isn't ready yet."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNAL_EXIT_BASE + number))


@app.command("status")
def show_status(
    session_id: Annotated[
        str | None, typer.Argument(help="A session's id. Default: all sessions.", autocompletion=complete_sessions)
    ] = None,
    *,
    site: SiteOptions,
) -> None:
    """List the sessions and the split queues, with what these wait for, or show the queues of one session."""
    client = ControlClient.connect(site.connect())
    if session_id is None:
        view = client.ask(ShowSplitting())
        sessions = [build_session_document(session) for session in view.sessions]
        document = {"version": view.version, "sessions": sessions, "splits": view.splits}
        print_result(document, lambda: tables.show_splitting(view))
        return
    session = client.ask(FindSession(session_id=session_id))
    print_result(build_session_document(session), lambda: tables.show_session(session))
    if isinstance(session, EndedSession):
        print_note(f"no session {session_id}: {session.reason or 'it was never started here, or ended long ago'}")
        raise typer.Exit(1)


@app.command("tail")
def print_routed_messages(
    session: Annotated[
        str | None,
        typer.Argument(help="A session's id or key. Default: all sessions.", autocompletion=complete_sessions),
    ] = None,
    *,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Only messages of this queue.", autocompletion=complete_split_queues),
    ] = None,
    since: Annotated[str, typer.Option(metavar="PERIOD", help="Begin this long ago: 90s, 5m, 2h, 1d.")] = "5m",
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Keep printing until ctrl-C.")] = True,
    site: SiteOptions,
) -> None:
    """Print each message that was routed to a session: its queue, mode, session and message id, one per line.

    The message id is the one that the producer got. With --json each line is a document. With --no-follow, exit code 1
    if no message was routed.
    """
    since_ms = int((time.time() - tables.parse_period(since)) * 1_000)
    connection = site.connect()
    group = read_stack_output(connection, "SluiceSplitting", "SplitterLogGroupName")
    logs, message = FunctionLogs(connection.client("logs"), group, since_ms), None
    while True:
        for message in tables.read_new_messages(logs, session=session, queue_id=queue):
            if is_json():
                show_json(message)
            else:
                typer.echo(tables.format_message(message))
        if not follow and message is None:
            print_note(f"no such message in the last {since}")
            raise typer.Exit(1)
        if not follow:
            return
        time.sleep(TAIL_INTERVAL_S)


@app.command("stop")
def stop_sessions(
    session_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="SESSION",
            help="A session's id, key or name, as in `split status`.",
            autocompletion=complete_sessions,
        ),
    ],
    *,
    site: SiteOptions,
) -> None:
    """Stop sessions, even other users'. Messages that a session hasn't read return to the deployed consumer."""
    client = ControlClient.connect(site.connect())
    sessions = client.ask(ShowSplitting()).sessions
    ids = dict.fromkeys(
        session_id
        for name in session_ids
        for session_id in [known.session_id for known in sessions if name in {known.session_id, known.key, known.name}]
        or [name]
    )
    ended = [client.ask(StopSession(session_id=session_id)) for session_id in ids]
    said = "\n".join(f"{ended_session.session_id}: {ended_session.status}" for ended_session in ended)
    print_result([build_session_document(session) for session in ended], said)


@app.command("release")
def release_queue(
    queue_id: Annotated[str, typer.Argument(metavar="QUEUE", help="Its id.", autocompletion=complete_split_queues)],
    *,
    site: SiteOptions,
) -> None:
    """End a FIFO queue's drain or linger time now: its consumers, then the messages they haven't read, go back."""
    ControlClient.connect(site.connect()).ask(ReleaseQueue(queue_id=queue_id))
    said = f"{queue_id} is released; the consumers, then the remaining messages, go back to the source"
    print_result({"queue_id": queue_id, "is_drain_over": True}, said)


@app.command("run", json=False)
def run_on_session(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="The program and its arguments.")
    ] = None,
    *,
    function: Annotated[
        str | None,
        typer.Option(
            "--lambda",
            metavar="NAME",
            help="Run a handler instead of a program, with the variables of this deployed function.",
        ),
    ] = None,
    handler: Annotated[
        str | None,
        typer.Option(metavar="MODULE.FUNCTION", help="With --lambda: the handler. Default: the deployed one's."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10, help="With --lambda: most messages per invocation.")] = 10,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[VARIABLE=]QUEUE",
            help="A queue, and the variable for its URL, or for its name if the variable ends in _NAME.",
            autocompletion=complete_split_queues,
        ),
    ] = None,
    filter_file: FilterFile = None,
    filters: Filters = None,
    jq: JqFilters = None,
    mirror: Mirrored = None,
    key: Key = None,
    name: Name = "",
    linger: Linger = 0,
    time_limit: TimeLimit = None,
    site: SiteOptions,
) -> None:
    """Run a program, or a function's handler, on the queues of a session. The session ends with the program.

    VARIABLE defaults to SLUICE_QUEUE_URL, with the queue's name in SLUICE_QUEUE_NAME; --queue defaults to the variables
    of the deployed consumers, if Sluice re-points these by environment variables. The program can reach only the
    session's site, with temporary credentials; docs/splitting.md describes them.

    The exit code is the program's, or 70 if the session ended before the program.

    With --lambda the handler is invoked in this process with SQS events until ctrl-C, so that breakpoints work.
    Messages that the handler doesn't report as failed are deleted.
    """
    if bool(command) == (function is not None):
        raise typer.BadParameter("give either a program after --, or --lambda NAME")
    if function is None and handler is not None:
        raise typer.BadParameter("--handler needs --lambda")
    if function is not None and queue:
        raise typer.BadParameter("--queue is only for programs: a handler receives the messages of all queues")
    by_queue, key = read_filters(filter_file, filters or [], jq=jq or [], mirror=mirror or [], key=key)
    connection = site.connect()
    client = ControlClient.connect(connection)
    serve = None if function is None else load_handler(connection, function, handler, batch_size)
    environment = {} if serve else {**remove_aws_variables(os.environ), **build_program_variables(connection)}
    if command:  # checks the program's needs before a session starts
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise SessionFailed(f"{command[0]}: No such file, or it may not be run")
        known = {view.queue_id: view.variables for view in client.ask(ShowSplitting()).queues}
        chosen = {queue_id: names for queue_id, names in known.items() if select_filter(by_queue, queue_id)}
        queue = queue or build_queue_options(chosen)
        build_queue_variables(dict.fromkeys(chosen, "/"), queue)
    _exit_on_sigterm()
    user = fetch_user_id(connection)
    fields = {"user_id": user, "key": key, "name": name, "linger_s": linger, "time_limit_s": time_limit}
    with open_session(client, by_queue, **fields, progress=print_note) as opened:
        if serve is None:
            urls = {own.queue_id: opened.queue_url(own.queue_id) for own in opened.view.queues}
            code = run_program(command or [], {**environment, **build_queue_variables(urls, queue or [])}, opened)
        else:
            code = serve(opened)
    if opened.reason:
        print_note(f"the session ended before the program: {opened.reason}")
        code = SESSION_LOST
    raise typer.Exit(code)


@app.command("agent")
def run_agent(
    *,
    clusters: Annotated[
        list[str],
        typer.Option(
            "--cluster",
            metavar="CLUSTER[=CONTEXT]",
            help="A cluster, and its context in the kubeconfig, by default of the same name; repeatable.",
        ),
    ],
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="Kubeconfig file. Default: KUBECONFIG, or ~/.kube/config.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Apply the pending steps once, then exit.")] = False,
    site: SiteOptions,
) -> None:
    """Re-point consumers in clusters that Lambda can't reach, until ctrl-C.

    The agent serves consumers with `agent: true` in the clusters of --cluster. With --json each step is a line.
    """
    require_modules("kubernetes", "kubernetes")
    from sluice.cli.splitting.agents import Agent, parse_clusters  # noqa: PLC0415 - kubernetes is an extra

    contexts = parse_clusters(clusters)
    running = Agent.create(ControlClient.connect(site.connect()), contexts, kubeconfig=kubeconfig)
    if not once:
        print_note(f"re-pointing consumers in {', '.join(contexts)} until ctrl-C")
    while True:
        wait_s = running.apply_pending_steps()
        if once:
            return
        time.sleep(wait_s)
