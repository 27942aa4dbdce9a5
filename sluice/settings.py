"""A function's settings: one class, by which the stack writes environment variables and the function reads them.

They are read at the function's first call and not at import. What a setting means is its capability's to say.

What grows with a site stands beside the variables, which have 4 KB together:
https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec

from sluice.codec import Struct
from sluice.errors import BadSetting

Natural = Annotated[int, msgspec.Meta(ge=0)]
STORED_NAMES = "STORED_SETTINGS"  # the variable with the names that what is stored is found by, in order

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Settings(Struct, frozen=True, kw_only=True):
    """Base of the settings' classes: field `table` is variable `TABLE`, and nowhere else is that name written.

    A text is the variable as it stands, everything else is JSON, None is no variable. So a text that only a deployment
    will know, at synth a token, goes through untouched, also within JSON; numbers are known at synth. Fields are lists
    and objects, not sets: these have no order, and each synth must give the same.

    Fields named in `STORED` may be one JSON object instead, which a stack stores in parts.
    """

    STORED: ClassVar[frozenset[str]] = frozenset()

    def environment(self, *, stored_under: Sequence[str] = ()) -> dict[str, str]:
        """Write the variables for the function that calls `read`: of `stored`, where there are names for it, these."""
        left_out = self.STORED if stored_under else ()
        values = {name.upper(): getattr(self, name) for name in self.__struct_fields__ if name not in left_out}
        if stored_under:
            values[STORED_NAMES] = ",".join(stored_under)
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in values.items()
            if value is not None
        }

    def stored(self) -> str:
        """Write what needn't be variables, as `read` is to be given it again; empty where there is nothing of that."""
        if not self.STORED:
            return ""
        return msgspec.json.encode({name: getattr(self, name) for name in sorted(self.STORED)}).decode()

    @classmethod
    def read(cls, environment: Mapping[str, str], stored: Callable[[Sequence[str]], str] | None = None) -> Self:
        """Read what `environment` wrote. Raises `BadSetting`, which names the variable.

        `stored` gives what was stored under names: it is asked where the environment has some, and its errors go on.
        """
        names = environment.get(STORED_NAMES)
        kept = _FIELDS.decode(stored(names.split(","))) if names and stored else {}
        values: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            name = field.name.upper()
            text = environment.get(name, "")
            if field.name in kept:
                values[field.name] = _value(name, kept[field.name], field.type)
            elif text:
                values[field.name] = _value(name, text, field.type)
            elif field.required:
                raise BadSetting(name, "is not set")
        return cls(**values)


def _value(name: str, text: str | msgspec.Raw, type_: Any) -> Any:
    if isinstance(text, str) and type_ in {str, str | None}:
        return text
    try:
        return msgspec.json.decode(text, type=type_)
    except (ValueError, RecursionError) as error:  # msgspec's errors are the former
        raise BadSetting(name, str(error)) from error
