"""Settings of functions: the stack writes them as environment variables, and the function reads the same class.

A function reads its settings at its first call, not at import. Each capability documents its own settings. Settings
that grow with a site are stored outside the variables, which have 4 KB in all:
https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec

from sluice.codec import Struct
from sluice.errors import BadSetting

Natural = Annotated[int, msgspec.Meta(ge=0)]
STORED_NAMES = "STORED_SETTINGS"  # This variable lists the names of stored parameters, in order.

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Settings(Struct, frozen=True, kw_only=True):
    """Base class of settings: field `table` is environment variable `TABLE`.

    A string is the variable's value as it is, any other type is JSON, and None means no variable. A string that is a
    CDK token at synth therefore passes through unchanged, even in JSON. Fields are lists and objects, not sets, so that
    each synth gives the same text. The stack may store `STORED_FIELDS` as one JSON object in several parameters.
    """

    STORED_FIELDS: ClassVar[frozenset[str]] = frozenset()

    def environment(self, *, stored_under: Sequence[str] = ()) -> dict[str, str]:
        """Return the function's environment variables. Parameters `stored_under` replace the stored fields."""
        left_out = self.STORED_FIELDS if stored_under else ()
        values = {name.upper(): getattr(self, name) for name in self.__struct_fields__ if name not in left_out}
        if stored_under:
            values[STORED_NAMES] = ",".join(stored_under)
        return {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in values.items()
            if value is not None
        }

    def encode_stored(self) -> str:
        """Encode the fields in `STORED_FIELDS` as one JSON object for `read`. Without such fields, the text is ""."""
        if not self.STORED_FIELDS:
            return ""
        return msgspec.json.encode({name: getattr(self, name) for name in sorted(self.STORED_FIELDS)}).decode()

    @classmethod
    def read(cls, environment: Mapping[str, str], stored: Callable[[Sequence[str]], str] | None = None) -> Self:
        """Read the settings from environment variables. Raises `BadSetting`, which names the variable.

        `stored` loads the stored text by the parameters' names. It is called only if the environment has such names.
        """
        names = environment.get(STORED_NAMES)
        stored_values = _FIELDS.decode(stored(names.split(","))) if names and stored else {}
        values_by_field: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            name = field.name.upper()
            text = environment.get(name, "")
            if field.name in stored_values:
                values_by_field[field.name] = _parse_value(name, stored_values[field.name], field.type)
            elif text:
                values_by_field[field.name] = _parse_value(name, text, field.type)
            elif field.required:
                raise BadSetting(name, "is not set")
        return cls(**values_by_field)


def _parse_value(name: str, text: str | msgspec.Raw, type_: Any) -> Any:
    if isinstance(text, str) and type_ in {str, str | None}:
        return text
    try:
        return msgspec.json.decode(text, type=type_)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors.
        raise BadSetting(name, str(error)) from error
