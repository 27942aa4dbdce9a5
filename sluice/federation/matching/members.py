"""Members of an index under one of its keys: numbers, each as often as it was added. Pure.

There may be a hundred thousand keys, most of them with one member: that is the number itself.
"""

Members = int | tuple[int, ...]
NOBODY: Members = ()


def joined(members: Members, member: int) -> Members:
    """Add a member."""
    if isinstance(members, int):
        return members, member
    return (*members, member) if members else member


def left(members: Members, member: int) -> Members:
    """Take a member away, once. Raises `KeyError` where it isn't one."""
    if members == member:
        return NOBODY
    if isinstance(members, int) or member not in members:
        raise KeyError(member)
    place = members.index(member)
    others = (*members[:place], *members[place + 1 :])
    return others[0] if len(others) == 1 else others


def gather(members: Members, found: set[int]) -> None:
    """Add the members to those that were found."""
    if isinstance(members, int):
        found.add(members)
    else:
        found.update(members)
