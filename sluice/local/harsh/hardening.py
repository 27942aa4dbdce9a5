"""Installs the behaviours that `Behaviours` selects in this process, which is the embedded cloud's."""

import contextlib
import os
import signal
from random import Random
from typing import Any

import ministack.core.lambda_runtime

from sluice.local.harsh import access, concurrency, delivery, limits, loops, mappings, queues, tables, throttling
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.patches.expiry import expire_items


def harden(behaviours: Behaviours) -> None:
    """Install every selected behaviour, once, before the cloud serves. Each behaviour wraps those installed earlier."""
    random = Random(behaviours.seed)  # noqa: S311 - chances, not secrets
    delivery.deliver_unreliably(behaviours, random)
    delivery.limit_in_flight(behaviours.in_flight)
    is_changing = access.change_access_slowly(behaviours)
    access.change_queue_policies_slowly(behaviours)
    queue_exists = queues.delay_queues(behaviours, random)
    mappings.change_mappings_slowly(behaviours, queue_exists=queue_exists, is_changing=is_changing)
    concurrency.limit_concurrency(behaviours.account_concurrency)
    loops.stop_loops()
    mappings.scale_slowly(behaviours)
    tables.read_eventually(behaviours, random)
    throttling.fail_entries(behaviours, random)
    throttling.throttle(behaviours, random)
    throttling.limit_parameter_reads(behaviours.parameter_reads_per_s)
    expire_items(stay_s=behaviours.scale_delay(behaviours.expired_item_stays_s))
    if behaviours.frozen:
        freeze_between_invocations()
    if behaviours.limits:
        limits.enforce_queue_limits()
        limits.enforce_function_limits()
        limits.enforce_mapping_limits()


def freeze_between_invocations() -> None:
    """Freeze an execution environment and all its processes after each response, until its next invocation.

    "Lambda freezes the execution environment when the runtime and each extension have completed and there are no
    pending events". Work that a function has left running continues at the environment's next invocation, or never.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html

    Each environment is a process group, because of `sluice.local.patches.functions.end_whole_environments`.
    """
    worker = ministack.core.lambda_runtime.Worker
    invoke = worker.invoke

    def send_to_group(process: Any, signal_number: int) -> None:
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)

    def invoke_thawed(self: Any, *arguments: Any, **named: Any) -> Any:
        send_to_group(self._proc, signal.SIGCONT)
        try:
            return invoke(self, *arguments, **named)
        finally:
            send_to_group(self._proc, signal.SIGSTOP)

    worker.invoke = invoke_thawed
