"""Measures one function's environment that reads a snapshot of bindings and loads only what a function loads.

`python -m benchmarks.binding_memory <function> <file>` prints the peak memory in MB, and the CPU time of reading in ms.
`benchmarks.bindings` runs it.
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
    """Load and read as a new environment of the function does, and print the measurements."""
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
    """Return this process's peak memory in KB. `getrusage` would include the parent's."""
    found = _PEAK.search(Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
