"""The process that runs jq programs: `python -m sluice.splitting.jq_child PARENT`. It can be killed.

A line of JSON in, `[program, document]`; a line out, `true`, `false` or `null`. Programs are compiled once each. One
without a document is only compiled: out comes `null`, or the compiler's words.

It has so much memory and no more, as jq works out constants when it compiles, and takes what it likes when it runs. And
it doesn't outlive who asked: a program that never ends doesn't see that its input has ended.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from sluice.splitting.filters.jq import decision

COMPILED = 1_000  # programs kept: as many as there may be sessions
MEMORY_BYTES = 128 * 2**20  # of which Python and jq take a tenth; the functions have twice and four times as much
PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html


def main(parent: int) -> None:
    """Until its input ends, or its parent does."""
    if sys.platform == "linux":
        # Data, not address space: what is mapped and never touched costs nothing.
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died meanwhile
            sys.exit(1)
    # After the limits: what jq's library allocates as it is loaded is under them too.
    import jq  # noqa: PLC0415 - see above

    compiled = lru_cache(maxsize=COMPILED)(jq.compile)
    for line in sys.stdin:
        program, document = json.loads(line)
        said: object
        if document is None:
            said = _problem(compiled, program)
        else:
            said = decision(iter(compiled(program).input_text(document)))
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _problem(compiled: Any, program: str) -> str | None:
    try:
        compiled(program)
    except ValueError as error:
        return str(error).strip().splitlines()[0]
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
