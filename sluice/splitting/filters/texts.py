"""A message as filters see it: the texts of its attributes by folded name, and its document for jq. Pure.

Names match without regard to case, so one name can stand for several attributes (`Author` and `author`, or a message's
own and its envelope's): a pattern is satisfied by any of them. Binary attributes have no text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.message import Message
from sluice.splitting.filters import jq
from sluice.splitting.filters.envelopes import envelope_attributes

Texts = Mapping[str, tuple[str, ...]]  # by folded attribute name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One message, prepared once for all sessions."""

    message: Message
    texts: Texts
    s3_metadata: Mapping[str, str] | None = None
    _document: list[str] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, message: Message, *, sns: bool = False, s3_metadata: Mapping[str, str] | None = None) -> "Sight":
        """Prepare a message of a split queue; with S3 events `s3_metadata` is a map, empty where none was found."""
        texts: dict[str, tuple[str, ...]] = {}
        for attributes in (message.attributes, envelope_attributes(message.body) if sns else {}):
            for name, value in attributes.items():
                if value.text is not None and not value.data_type.startswith("Binary"):
                    folded = fold_name(name)
                    texts[folded] = (*texts.get(folded, ()), value.text)
        return cls(message=message, texts=texts, s3_metadata=s3_metadata)

    def document(self) -> str:
        """Give what jq sees, made when the first program asks."""
        if not self._document:
            self._document.append(jq.document(self.message, s3_metadata=self.s3_metadata))
        return self._document[0]


def fold_name(name: str) -> str:
    """Give the form in which attribute names are compared."""
    return name.casefold()
