"""Has the cloud of this process do what `Behaviours` say."""

from random import Random

from sluice.local.harsh import access, delivery, environments, exports, limits, mappings, queues, throttling
from sluice.local.harsh.behaviours import Behaviours
from sluice.local.patches.expiry import expire_items


def harden(behaviours: Behaviours) -> None:
    """Install every behaviour, once, before the cloud serves. Each wraps those before it."""
    random = Random(behaviours.seed)  # noqa: S311 - chances, not secrets
    delivery.deliver_carelessly(behaviours, random)
    is_changing = access.change_access_slowly(behaviours)
    access.change_queue_policies_slowly(behaviours)
    is_there = queues.delay_queues(behaviours, random)
    mappings.change_slowly(behaviours, is_there=is_there, is_changing=is_changing)
    throttling.fail_entries(behaviours, random)
    throttling.throttle(behaviours, random)
    expire_items(stay_s=behaviours.scale_delay(behaviours.expired_item_stays_s))
    if behaviours.frozen:
        environments.freeze_between_invocations()
    if behaviours.exports_held:
        exports.protect_exports()
    if behaviours.limits:
        limits.enforce_queue_limits()
        limits.enforce_function_limits()
