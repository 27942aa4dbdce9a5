"""Fills in the templates `{{ … }}` of filter files, in the part of the Tera language that mirrord's files use. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from sluice.errors import BadFilter

VARIABLES = ("git_branch", "key", "user")

# Each part of this pattern can match in only one way, so the time of a search is proportional to the text's length.
_TEMPLATE = re.compile(r"\{\{((?:(?!\{\{).)*?)\}\}|\{%(?:(?!\{%).)*?%\}", re.DOTALL)
_STEP = re.compile(r"(\w+)\s*(?:\(((?:[^`()]|`[^`]*`)*)\)\s*)?(?:\|\s*|\Z)")
_ARGUMENT = re.compile(r"(\w+)\s*=\s*`([^`]*)`")
_FILTERS: Mapping[str, Callable[..., str]] = {
    "default": lambda text, value: text,  # noqa: ARG005 - for a value that is there
    "lower": str.lower,
    "regex_escape": re.escape,
    "replace": lambda text, **pair: text.replace(pair["from"], pair["to"]),
    "slugify": lambda text: re.sub("[^a-z0-9]+", "-", text.lower()).strip("-"),
    "trim": str.strip,
    "upper": str.upper,
}
_SUPPORTED = f"get_env(name, default), {', '.join(VARIABLES)}, and the filters {', '.join(_FILTERS)}"


def protect_quotes(text: str) -> str:
    """Replace quotes inside templates by backticks, which mean the same but don't end a string in JSON or YAML."""
    return _TEMPLATE.sub(lambda template: re.sub(r"\\?[\"']", "`", template[0]), text)


class Templates(msgspec.Struct, frozen=True):
    """The known values of template variables (`VARIABLES`), and the environment variables for `get_env`."""

    variables: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}

    def fill(self, place: str, text: str, *, kind: Literal["text", "pattern", "program"]) -> str:
        """Replace the templates in a text. Raises `BadFilter`, which names the first one that has no value here.

        In a pattern, a variable's value matches itself, but the value of `get_env` is part of the pattern. Programs can
        have templates only inside strings.
        """

        def evaluate(template: re.Match[str]) -> str:
            source, expression = template[0].replace("`", "'"), protect_quotes(template[0])
            value, names = self._evaluate(place, source, _TEMPLATE.sub(r"\1", expression).strip("-").strip())
            if kind == "pattern" and names[0] in VARIABLES and "regex_escape" not in names:
                value = re.escape(value)
            return json.dumps(value)[1:-1] if kind == "program" else value

        return _TEMPLATE.sub(evaluate, text)

    def _evaluate(self, place: str, source: str, expression: str) -> tuple[str, list[str]]:
        """Return an expression's value, and the names in the expression: the variable or function, and filters."""
        steps = list(_STEP.finditer(expression))
        is_read = "".join(step[0] for step in steps) == expression
        names = [step[1] for step in steps if is_read]
        arguments = [dict(_ARGUMENT.findall(step[2] or "")) for step in steps]
        try:
            if names[0] == "get_env":
                value = self.environment.get(arguments[0]["name"], arguments[0].get("default"))
            else:
                value = self.variables.get(VARIABLES[VARIABLES.index(names[0])])
            for name, given_arguments in zip(names[1:], arguments[1:], strict=True):
                value = given_arguments["value"] if value is None and name == "default" else value
                value = _FILTERS[name](value, **given_arguments) if value is not None else None
        except (LookupError, TypeError, ValueError) as error:
            raise BadFilter(place, f"{source[:80]} isn't supported; there are {_SUPPORTED}") from error
        if value is None:
            name = arguments[0].get("name", names[0])
            raise BadFilter(place, f"asks for {source[:80]}, and no {name} is given: give it, or add a default")
        return value, names
