"""A function's settings: one class, by which the stack writes environment variables and the function reads them.

They are read at the function's first call and not at import. What a setting means is its capability's to say.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from sluice.codec import Struct
from sluice.errors import BadSetting

Natural = Annotated[int, msgspec.Meta(ge=0)]


class Settings(Struct, frozen=True, kw_only=True):
    """Base of the settings' classes: field `table` is variable `TABLE`, and nowhere else is that name written.

    A text is the variable as it stands, everything else is JSON, None is no variable. So a text that only a deployment
    will know, at synth a token, goes through untouched, also within JSON; numbers are known at synth. Fields are lists
    and objects, not sets: these have no order, and each synth must give the same.
    """

    def environment(self) -> dict[str, str]:
        """Write the variables for the function that calls `read`."""
        values = {name.upper(): getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in values.items()
            if value is not None
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Read what `environment` wrote. Raises `BadSetting`, which names the variable."""
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            name = field.name.upper()
            text = environment.get(name, "")
            if text:
                values[field.name] = _value(name, text, field.type)
            elif field.required:
                raise BadSetting(name, "is not set")
        return cls(**values)


def _value(name: str, text: str, type_: Any) -> Any:
    if type_ in {str, str | None}:
        return text
    try:
        return msgspec.json.decode(text, type=type_)
    except (ValueError, RecursionError) as error:  # msgspec's errors are the former
        raise BadSetting(name, str(error)) from error
