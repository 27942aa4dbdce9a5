"""Environment variables, by which a function is told its settings: read at its first call and not at import."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sluice.errors import BadSetting, SluiceError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment variables, read by name and type. Raises `BadSetting`, which names the variable."""

    environment: Mapping[str, str]

    def text(self, name: str) -> str:
        """A text that isn't empty."""
        value = self.environment.get(name, "")
        if not value:
            raise BadSetting(name, "is not set")
        return value

    def number(self, name: str) -> int:
        """A whole number, not negative."""
        return self.parsed(name, _not_negative)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T:
        """Whatever `parse` makes of it; its ValueError and our own errors name the variable."""
        try:
            return parse(self.text(name))
        except (ValueError, SluiceError) as error:
            if isinstance(error, BadSetting):
                raise
            raise BadSetting(name, str(error)) from error


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number
