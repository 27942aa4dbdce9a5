"""Templates of filter files: each is filled in or refused by name, in time that grows with the length only."""

import pytest

from sluice.errors import BadFilter
from sluice.splitting.filters.templates import Templates, protect_quotes

BLANKS = " " * 100_000
TEMPLATES = Templates({"key": "k-1"})


@pytest.mark.parametrize("template", ["{{key}}", "{{- key -}}", f"{{{{{BLANKS}key{BLANKS}}}}}"])
def test_blanks_around_a_variable_do_not_count(template: str) -> None:
    assert TEMPLATES.fill("place", f"a{template}b", kind="text") == "ak-1b"


@pytest.mark.parametrize("template", ["{{ " + "x" * 500 + " }}", "{% if " + "x" * 500 + " %}"])
def test_a_long_template_that_is_not_supported_is_refused(template: str) -> None:
    with pytest.raises(BadFilter, match="isn't supported"):
        TEMPLATES.fill("place", template, kind="text")


@pytest.mark.parametrize("text", ["{{" + BLANKS, "{{" * 100_000, "{%" * 100_000, "{{ key " * 100_000])
def test_templates_that_do_not_end_stay_as_they_are(text: str) -> None:
    assert TEMPLATES.fill("place", protect_quotes(text), kind="text") == text
