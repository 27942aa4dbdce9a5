"""The child process that runs jq programs: `python -m sluice.splitting.jq_child PARENT`. It can be killed.

Each line of its input is JSON, `[program, document]`; each line of its output is the decision: `true`, `false` or
`null`. With `null` as document, the program is only compiled: the output is `null`, or the compiler's error. Compiled
programs are cached. The process's memory is limited, since jq evaluates constants when it compiles, and has no limit of
its own. It can open no file, since a program's `import` reads any that ends in `.json` or `.jq`. It ends with its
parent, even while an endless program keeps it from noticing the end of its input.
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

from sluice.splitting.filters.jq import decision

COMPILED = 1_000  # maximum number of compiled programs in the cache, equal to that of sessions
MEMORY_BYTES = 128 * 2**20  # memory limit of the process; Python and jq need a tenth of this limit
OPEN_FILES = 3  # standard input, output and error, which are open already
# jq's errors about modules, whether or not there is such a file: a program must not learn that either.
MODULE_ERROR = re.compile("module not found|error loading data file|may not traverse to parent directories")
PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html


def main(parent: int) -> None:
    """Serve programs until the end of the input, or of the parent process."""
    if sys.platform == "linux":
        # The limit is on data, not on address space: memory that is mapped but never used doesn't count.
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call of prctl
            sys.exit(1)
    # Imported after the limits are set, so that they also cover what jq allocates while it is loaded.
    import jq  # noqa: PLC0415 - see above

    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    compiled = lru_cache(maxsize=COMPILED)(jq.compile)
    for line in sys.stdin:
        program, document = json.loads(line)
        said: object
        if document is None:
            said = _find_problem(compiled, program)
        else:
            said = decision(iter(compiled(program).input_text(document)))
        sys.stdout.write(json.dumps(said) + "\n")
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
