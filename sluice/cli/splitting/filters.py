"""Reads a session's filters from a JSON, TOML or YAML file, or from options, and checks them before any call to AWS."""

import getpass
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sluice.cli.terminal import print_note
from sluice.errors import BadFilter
from sluice.operator.documents import BadFile, read_document
from sluice.splitting.filters import files
from sluice.splitting.filters.templates import Templates, protect_quotes
from sluice.splitting.filters.values import EVERY_QUEUE, Mode, QueueFilters
from sluice.splitting.jq_runner import compile_problem


def read_filters(
    file: Path | None,
    options: Sequence[str],
    *,
    jq: Sequence[str] = (),
    mirror: Sequence[str] = (),
    key: str | None = None,
    say: Callable[[str], None] = print_note,
) -> tuple[QueueFilters, str | None]:
    """Read and check a session's filters and key. Raises `BadFilter`, which names the place in the file or option.

    `key` overrides the file's key. Without filters, the session gets every queue's messages with its key. `say` prints
    a note about parts of the file that have no effect.
    """
    if file is not None:
        conflicting = [option for option, value in (("--filter", options), ("--jq", jq), ("--mirror", mirror)) if value]
        if conflicting:
            raise BadFilter(
                "--filter-file", f"can't be combined with {' and '.join(conflicting)}: put those filters into the file"
            )
        try:
            read = read_document(file, prepare=protect_quotes)
        except BadFile as error:
            raise BadFilter(str(file), error.cause) from error
        left_out = files.describe_ignored(read)
        if left_out is not None:
            say(f"{file}: {left_out}")
        key = key or files.read_key(read, _read_templates(None))
        return files.parse_filters(read, compile_problem=compile_problem, templates=_read_templates(key)), key
    document = files.build_document(options)
    queues = document[files.ROOT]
    if key is not None and not (options or jq):
        queues[EVERY_QUEUE] = dict(files.KEY_FILTER)
    for option in jq:
        queue_id, colon, program = option.partition(":")
        if not (queue_id and colon and program):
            raise BadFilter("--jq", f"{option!r} is not QUEUE:PROGRAM")
        queues.setdefault(queue_id, {})["jq_filter"] = program
    for queue_id in mirror:
        if queue_id not in queues:
            raise BadFilter("--mirror", f"there is no filter for {queue_id!r}: add --filter or --jq for it")
        queues[queue_id]["queue_mode"] = Mode.MIRROR.value
    return files.parse_filters(document, compile_problem=compile_problem, templates=_read_templates(key)), key


def _read_templates(key: str | None) -> Templates:
    """Read the values for templates in filters. As in mirrord, `MIRRORD_BRANCH_NAME` overrides the Git branch."""
    variables = {"key": key, "git_branch": os.environ.get("MIRRORD_BRANCH_NAME")}
    with suppress(OSError, LookupError):  # The system may have no name for the user.
        variables["user"] = getpass.getuser()
    if variables["git_branch"] is None:
        with suppress(OSError):  # Git may not be installed.
            git = subprocess.run(["git", "branch", "--show-current"], capture_output=True, text=True, check=False)  # noqa: S607
            variables["git_branch"] = git.stdout.strip()
    return Templates({name: value for name, value in variables.items() if value}, os.environ)
