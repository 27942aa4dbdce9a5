"""A message as filters see it: its attributes' texts by folded name, their lines, and its document for jq. Pure.

Names match without regard to case, so one name can stand for several attributes (`Author` and `author`, or a message's
own and its envelope's): a pattern is satisfied by any of them. A line is `name: value`, with the name as it was sent.
Binary attributes have no text, and no line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.message import Message
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
    _named: Sequence[tuple[str, str]] = field(default=(), repr=False, compare=False)
    _lines: list[str] = field(default_factory=list, repr=False, compare=False)
    _documents: dict[bool, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message, *, sns: bool = False, s3_event: bool = False) -> "Sight":
        """Prepare a message of a split queue, which has SNS notifications or S3 events for its bodies."""
        texts: dict[str, tuple[str, ...]] = {}
        named: list[tuple[str, str]] = []
        for attributes in (message.attributes, envelope_attributes(message.body) if sns else {}):
            for name, value in attributes.items():
                if value.text is not None and not value.data_type.startswith("Binary"):
                    folded = fold_name(name)
                    texts[folded] = (*texts.get(folded, ()), value.text)
                    named.append((name, value.text))
        return cls(message=message, texts=texts, awaits_metadata=s3_event, _named=named)

    def lines(self) -> Sequence[str]:
        """Give each attribute as `name: value`, made when the first filter asks."""
        if len(self._lines) < len(self._named):
            self._lines.extend(f"{name}: {text}" for name, text in self._named)
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


def fold_name(name: str) -> str:
    """Give the form in which attribute names are compared."""
    return name.casefold()
