"""Stack outputs that other stacks import can't be changed."""

from collections.abc import Mapping
from typing import Any

import ministack.services.cloudformation
import ministack.services.cloudformation.handlers
import ministack.services.cloudformation.stacks


def protect_exports() -> None:
    """Fail an update that removes or changes an output which another stack imports; it is rolled back.

    "You can't modify or remove an output value that is referenced by another stack." ministack refuses to delete such
    a stack, but not to update it; an export that is removed is also forgotten here, which ministack doesn't do.
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-exports.html
    """
    cloudformation = ministack.services.cloudformation
    stacks = cloudformation.stacks
    resolve = stacks._resolve_stack_outputs  # noqa: SLF001 - no public hook

    def resolve_held(*arguments: Any) -> Any:
        outputs, exports = resolve(*arguments)
        stack_name, stack_id = arguments[-2:]
        for name, export in list(cloudformation._exports.items()):  # noqa: SLF001 - see above
            if export["StackId"] != stack_id:
                if name in exports:
                    raise ValueError(f"Export with name {name} is already exported by stack {export['StackId']}.")
                continue
            verb = "deleted" if name not in exports else "updated"
            importer = _importer(name, stack_name)
            if importer and exports.get(name, {}).get("Value") != export["Value"]:
                raise ValueError(f"Export {name} cannot be {verb} as it is in use by {importer}")
            if name not in exports:
                cloudformation._exports.pop(name)  # noqa: SLF001 - see above
        return outputs, exports

    stacks._resolve_stack_outputs = resolve_held  # noqa: SLF001 - see above


def _importer(export: str, stack_name: str) -> str | None:
    """Find a stack that imports it, other than the one that exports it."""
    cloudformation = ministack.services.cloudformation
    stacks: Mapping[str, Mapping[str, Any]] = cloudformation._stacks  # noqa: SLF001 - no public hook
    for name, stack in stacks.items():
        if name == stack_name or "DELETE" in stack.get("StackStatus", ""):
            continue
        if export in cloudformation.handlers._imported_export_names(stack, name):  # noqa: SLF001 - see above
            return name
    return None
