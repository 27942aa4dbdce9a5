"""Patches of ministack's server: physical names, and saved state."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import ministack.app
import ministack.core.responses
import ministack.services.cloudformation.provisioners

STATE_READS = 100


def name_by_region() -> None:
    """Derive physical names of resources from the region, too.

    ministack derives a name from the stack and the logical id. Therefore a stack's role, which is global, has the same
    name in two regions, and the second deployment takes over the first one's role. AWS's names end randomly.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-name.html
    """
    provisioners, responses = ministack.services.cloudformation.provisioners, ministack.core.responses
    physical, seed = provisioners._physical_name, provisioners._NAME_SEED  # noqa: SLF001 - no public hook

    def build_name_by_region(stack_name: str, logical_id: str, *, seeded: bool = True, **named: Any) -> str:
        own = seed.get() if seeded else ""
        token = seed.set(f"{responses.get_account_id()}/{responses.get_region()}/{own}")
        try:
            name: str = physical(stack_name, logical_id, **named)
        finally:
            seed.reset(token)
        return name

    provisioners._physical_name = build_name_by_region  # noqa: SLF001 - see above


def name_log_groups_like_other_resources() -> None:
    """If a log group has no name, generate one from its stack, its logical id and a random part.

    ministack names it `/aws/cloudformation/STACK/ID`, which no policy for AWS matches.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-properties-name.html
    """
    provisioners = ministack.services.cloudformation.provisioners
    handlers = provisioners._RESOURCE_HANDLERS["AWS::Logs::LogGroup"]  # noqa: SLF001 - no public hook
    create, update = handlers["create"], handlers["update"]

    def create_by_name(logical_id: str, properties: dict[str, Any], stack_name: str) -> Any:
        name = provisioners._physical_name(stack_name, logical_id)  # noqa: SLF001 - see above
        return create(logical_id, {"LogGroupName": name, **properties}, stack_name)

    def update_by_name(physical_id: str, old: dict[str, Any], new: dict[str, Any], *others: Any, **named: Any) -> Any:
        kept = {} if "LogGroupName" in old else {"LogGroupName": physical_id}
        return update(physical_id, {**kept, **old}, {**kept, **new}, *others, **named)

    handlers.update(create=create_by_name, update=update_by_name)


def save_changing_state(end: Callable[[], None]) -> None:
    """Save each service's state even if triggers change the state meanwhile. End the process after saving.

    ministack reads a state once. If the state changes meanwhile, ministack logs an error and doesn't save the service,
    so all queues would be lost. Then ministack waits for running invocations, whose responses no client receives.
    """
    app = ministack.app
    save = app.save_all

    def read_state(get_state: Callable[[], Any]) -> Any:
        for _ in range(STATE_READS):
            with contextlib.suppress(RuntimeError):  # The state changed during the read.
                return get_state()
        return get_state()

    def save_and_end(services: dict[str, Callable[[], Any]]) -> None:
        save({name: partial(read_state, get_state) for name, get_state in services.items()})
        end()

    app.save_all = save_and_end
