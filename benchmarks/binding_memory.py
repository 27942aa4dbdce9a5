"""A function's environment that reads a snapshot of bindings: it loads what a function loads, and nothing else.

`python -m benchmarks.binding_memory <function> <file>` prints the MB that it has taken at the most, and ms of CPU to
read; `benchmarks.bindings` asks it.
"""

import re
import sys
import time
from importlib import import_module
from pathlib import Path

from sluice.aws.clients import dynamodb_client, sqs_client
from sluice.federation.matching.bindings import RoutingTable, SiteBindings, build_replica

KB_IN_MB = 1_000_000 / 1024
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def main(function: str, stored: str) -> None:
    """Be the environment of a function that has just started."""
    import_module(f"functions.{function}.handler")
    dynamodb_client(), sqs_client()
    started = time.process_time()
    stored_bytes = Path(stored).read_bytes()
    replica: object
    if function == "exchange":
        replica = build_replica(stored_bytes, RoutingTable)
    else:
        replica = build_replica(stored_bytes, SiteBindings)
    ms = (time.process_time() - started) * 1e3
    print(_peak_kb() / KB_IN_MB, ms)
    del replica


def _peak_kb() -> int:
    """Of this program alone: what `getrusage` says has its parent's in it."""
    found = _PEAK.search(Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
