"""A message as filters see it: its attributes' texts by folded name, their lines, and its document for jq. Pure.

Names match without regard to case, so one name can stand for several attributes (`Author` and `author`, or a message's
own and its envelope's): a pattern is satisfied by any of them. A line is `name: value`, with the name as it was sent.
Binary attributes have no text, and no line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.message import Message, Value
from sluice.splitting.filters import jq
from sluice.splitting.filters.envelopes import envelope_attributes

Texts = Mapping[str, tuple[str, ...]]  # by folded attribute name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One message, prepared once for all sessions. `awaits_metadata` where S3 hasn't been asked for it yet."""

    message: Message
    texts: Texts
    s3_metadata: Mapping[str, str] | None = None
    awaits_metadata: bool = False
    _attributes: Sequence[Mapping[str, Value]] = field(default=(), repr=False, compare=False)
    _lines: list[str] = field(default_factory=list, repr=False, compare=False)
    _documents: dict[bool, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message, *, sns: bool = False, s3_event: bool = False) -> "Sight":
        """Prepare a message of a split queue, which has SNS notifications or S3 events for its bodies."""
        texts: dict[str, tuple[str, ...]] = {}
        found = (message.attributes, envelope_attributes(message.body)) if sns else (message.attributes,)
        for attributes in found:
            for name, value in attributes.items():
                if (text := _text_of(value)) is not None:
                    folded = fold_name(name)
                    texts[folded] = (*texts[folded], text) if folded in texts else (text,)
        return cls(message=message, texts=texts, awaits_metadata=s3_event, _attributes=found)

    def lines(self) -> Sequence[str]:
        """Give each attribute as `name: value`, made when the first filter asks."""
        if not self._lines:
            for attributes in self._attributes:
                texts = ((name, _text_of(value)) for name, value in attributes.items())
                self._lines.extend(f"{name}: {text}" for name, text in texts if text is not None)
        return self._lines

    def with_metadata(self, found: Mapping[str, str]) -> "Sight":
        """Give the message with what S3 said of its objects."""
        return replace(self, s3_metadata=found, awaits_metadata=False, _documents={})

    def document(self, program: str) -> str:
        """Give what this jq program sees, made when the first of its kind asks."""
        metadata = jq.names_metadata(program)
        if metadata not in self._documents:
            self._documents[metadata] = jq.document(self.message, s3_metadata=self.s3_metadata if metadata else None)
        return self._documents[metadata]


def _text_of(value: Value) -> str | None:
    return None if value.data_type.startswith("Binary") else value.text


def fold_name(name: str) -> str:
    """Give the form in which attribute names are compared."""
    return name.casefold()
