"""`python -m tests.sqs --queues 8 --latency-ms 20`: prints its URL, serves until it is ended."""

import argparse
import asyncio
import gc

from tests.sqs.queues import Queue
from tests.sqs.server import State, serve


def main() -> None:
    """Reads the arguments and serves."""
    parser = argparse.ArgumentParser(description="An in-memory SQS over HTTP on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--queues", type=int, default=8, help="made at the start: queue-0, queue-1, …")
    arguments = parser.parse_args()
    names = [f"queue-{number}" for number in range(arguments.queues)]
    state = State(latency_s=arguments.latency_ms / 1000, queues={name: Queue(name) for name in names})
    # Hundreds of thousands of messages, none in a cycle: looking at them again and again would be half of what it costs
    gc.disable()
    asyncio.run(_forever(state, arguments.port))


async def _forever(state: State, port: int) -> None:
    server = await serve(state, port)
    print(state.url, flush=True)  # noqa: T201  for who started it
    await server.serve_forever()


if __name__ == "__main__":
    main()
