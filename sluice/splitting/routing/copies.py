"""What a forwarded message keeps, and what a session's copy adds. Pure.

Kept: the body byte for byte, all attributes with their types, the X-Ray trace header, the group. Lost, as SQS gives no
way to set them: the original message id and sent time.
"""

from sluice.message import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES, Attributes, Message, Outgoing, Value, size_of

SESSION_ATTRIBUTE = "sluice-session"


def for_main(message: Message, *, fifo: bool) -> Outgoing:
    """Copy the message as the deployed consumer gets it; `fifo` where the queues are."""
    return _forwarded(message, message.attributes, known_as=message.message_id if fifo else None)


def for_session(message: Message, *, key: str, fifo: bool) -> Outgoing:
    """Make a session's copy, with the session's key as an attribute where there is room for it."""
    attributes = message.attributes
    if len(attributes) < MAX_ATTRIBUTES and SESSION_ATTRIBUTE not in attributes:
        marked = {**attributes, SESSION_ATTRIBUTE: Value("String", key)}
        # A message of the greatest size has no room for it either.
        attributes = marked if size_of(message.body, marked) <= MAX_MESSAGE_BYTES else attributes
    return _forwarded(message, attributes, known_as=message.message_id if fifo else None)


def returned(message: Message, *, key: str, fifo: bool) -> Outgoing:
    """Turn a session's copy into what goes back to main: without the session's key.

    It keeps the id by which its queue knew it, the source's message id: where the splitter, which couldn't say that it
    had sent the copy, sends the message to main, that is suppressed.
    """
    marked = message.attributes.get(SESSION_ATTRIBUTE) == Value("String", key)
    kept = {name: value for name, value in message.attributes.items() if not (marked and name == SESSION_ATTRIBUTE)}
    return _forwarded(message, kept, known_as=(message.deduplication_id or message.message_id) if fifo else None)


def _forwarded(message: Message, attributes: Attributes, *, known_as: str | None) -> Outgoing:
    """Copy a message. `known_as`, by FIFO queues: a retry is suppressed, two different messages never are."""
    return Outgoing(
        body=message.body,
        attributes=attributes,
        # Standard queues take a group too, to share fairly between its senders.
        group_id=message.group_id,
        deduplication_id=known_as,
        trace_header=message.trace_header,
    )
