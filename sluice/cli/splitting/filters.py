"""A session's filters from the command line: a file in JSON or YAML, or options, checked before anything is asked."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.cli.terminal import note
from sluice.errors import BadFilter
from sluice.operator.documents import BadFile, document_of_file
from sluice.splitting.filters.files import KEY_FILTER, ROOT, document_of, left_out_of, parse_filters
from sluice.splitting.filters.values import EVERY_QUEUE, Mode, QueueFilters
from sluice.splitting.jq_runner import compile_problem


def filters_of(
    file: Path | None,
    options: Sequence[str],
    *,
    jq: Sequence[str] = (),
    mirror: Sequence[str] = (),
    key: str | None = None,
    say: Callable[[str], None] = note,
) -> QueueFilters:
    """Read and check the filters that start a session. Raises `BadFilter`, which names the place.

    `key` stands where a filter asks for it; alone it takes what carries it, of every queue. What of a file counts for
    nothing is said.
    """
    if file is not None:
        beside = [option for option, given in (("--filter", options), ("--jq", jq), ("--mirror", mirror)) if given]
        if beside:
            raise BadFilter("--filter-file", f"goes without {' and '.join(beside)}: put that into the file")
        try:
            read = document_of_file(file)
        except BadFile as error:
            raise BadFilter(str(file), error.cause) from error
        left_out = left_out_of(read)
        if left_out is not None:
            say(f"{file}: {left_out}")
        return parse_filters(read, compile_problem=compile_problem, key=key)
    document = document_of(options)
    queues = document[ROOT]
    if key is not None and not (options or jq):
        queues[EVERY_QUEUE] = dict(KEY_FILTER)
    for option in jq:
        queue_id, colon, program = option.partition(":")
        if not (queue_id and colon and program):
            raise BadFilter("--jq", f"{option!r} is not QUEUE:PROGRAM")
        queues.setdefault(queue_id, {})["jq_filter"] = program
    for queue_id in mirror:
        if queue_id not in queues:
            raise BadFilter("--mirror", f"there is no --filter or --jq for {queue_id!r}")
        queues[queue_id]["queue_mode"] = Mode.MIRROR.value
    return parse_filters(document, compile_problem=compile_problem, key=key)
