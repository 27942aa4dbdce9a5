"""The child process that runs jq programs: `python -m sluice.splitting.jq_child PARENT`. The process can be killed.

Each line of its input is JSON, `[program, document]`; each line of its output is the decision: `true`, `false` or
`null`. With `null` as document, the program is only compiled: the output is `null`, or the compiler's error. Compiled
programs are cached. The process's memory is limited, because jq evaluates constants when it compiles a program, and jq
itself has no limit. The process can open no file, because a program's `import` could read any file that ends in `.json`
or `.jq`. The process ends with its parent, even if an endless program prevents it from reading the end of its input.
"""

import ctypes
import json
import os
import re
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from sluice.splitting.filters.jq import find_decision

COMPILED = 1_000  # The cache has room for one compiled program of each session.
MEMORY_BYTES = 128 * 2**20  # This is the process's memory limit; Python and jq need a tenth of it.
OPEN_FILES = 3  # Standard input, output and error are open already.
# Matches jq's errors about modules, with or without an existing file: a program must not learn which files exist.
MODULE_ERROR = re.compile("module not found|error loading data file|may not traverse to parent directories")
PR_SET_PDEATHSIG = 1  # See https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html


def main(parent_pid: int) -> None:
    """Run the programs in standard input until the input or the parent process ends."""
    if sys.platform == "linux":
        # Limit data instead of address space, because memory that is mapped but never used should not count.
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # The parent died before the call of prctl.
            sys.exit(1)
    # Import jq after setting the limits, so that the limits also cover the memory that jq allocates while it is loaded.
    import jq  # noqa: PLC0415 - see above

    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    compiled = lru_cache(maxsize=COMPILED)(jq.compile)
    for line in sys.stdin:
        program, document = json.loads(line)
        reply: object
        if document is None:
            reply = _find_problem(compiled, program)
        else:
            reply = find_decision(iter(compiled(program).input_text(document)))
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _find_problem(compiled: Any, program: str) -> str | None:
    try:
        compiled(program)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        return "it imports a module: filters can't read files" if MODULE_ERROR.search(first) else first
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
