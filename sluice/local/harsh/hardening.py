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
    is_there = queues.settle_slowly(behaviours, random)
    mappings.change_slowly(behaviours, is_there=is_there, is_changing=is_changing)
    throttling.fail_entries(behaviours, random)
    throttling.throttle(behaviours, random)
    expire_items(stay_s=behaviours.scaled(behaviours.expired_item_stays_s))
    if behaviours.frozen:
        environments.freeze_between_invocations()
    if behaviours.exports_held:
        exports.hold_exports_in_use()
    if behaviours.limits:
        limits.keep_limits_of_queues()
        limits.keep_limits_of_functions()
