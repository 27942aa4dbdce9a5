"""The process that runs jq programs: `python -m sluice.splitting.jq_child`. It is killed when one takes too long.

A line of JSON in, `[program, document]`; a line out, `true`, `false` or `null`. Programs are compiled once each.
"""

import json
import sys
from functools import lru_cache

import jq

from sluice.splitting.filters.jq import decision

COMPILED = 1_000  # programs kept: as many as there may be sessions


compiled = lru_cache(maxsize=COMPILED)(jq.compile)


def main() -> None:
    """Until its input ends."""
    for line in sys.stdin:
        program, document = json.loads(line)
        decided = decision(iter(compiled(program).input_text(document)))
        sys.stdout.write(json.dumps(decided) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
