"""What a stack writes into a function's environment is what the function reads."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadSetting
from sluice.settings import Natural, Settings


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    near: tuple[str, ...] = ()


class Trial(Settings, frozen=True, kw_only=True):
    table: str
    held_max: Natural
    loud: bool = False
    places: dict[str, Place] = {}  # noqa: RUF012 - msgspec copies it
    file: str | None = None
    lone: Place | None = None


def test_a_variable_is_named_as_its_field() -> None:
    settings = Trial(table="t", held_max=3, places={"a": Place("b", ("c",))}, file="f")
    assert settings.environment() == {
        "TABLE": "t",
        "HELD_MAX": "3",
        "LOUD": "false",
        "PLACES": '{"a":{"name":"b","near":["c"]}}',
        "FILE": "f",
    }


PLACES = st.builds(Place, st.text(), st.lists(st.text()).map(tuple))
TRIALS = st.builds(
    Trial,
    table=st.text(min_size=1),
    held_max=st.integers(0, 2**62),
    loud=st.booleans(),
    places=st.dictionaries(st.text(), PLACES),
    file=st.none() | st.text(min_size=1),
    lone=st.none() | PLACES,
)


@given(TRIALS)
def test_what_is_written_is_read(settings: Trial) -> None:
    assert Trial.read(settings.environment()) == settings


def test_other_variables_are_left_alone() -> None:
    assert Trial.read({"TABLE": "t", "HELD_MAX": "1", "PATH": "/bin"}) == Trial(table="t", held_max=1)


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("TABLE", "", "is not set"),
        ("HELD_MAX", "", "is not set"),
        ("HELD_MAX", "many", "JSON is malformed"),
        ("HELD_MAX", "-1", "Expected `int` >= 0"),
        ("LOUD", '"yes"', "Expected `bool`, got `str`"),
        ("PLACES", "[]", "Expected `object`, got `array`"),
        ("PLACES", '{"a": {"near": []}}', r"missing required field `name` - at `\$\[...\]`"),
        ("LONE", "[]", "Expected `object | null`, got `array`"),
    ],
)
def test_a_bad_variable_is_named(name: str, value: str, cause: str) -> None:
    with pytest.raises(BadSetting, match=f"environment variable {name}: .*(?:{cause})") as caught:
        Trial.read({"TABLE": "t", "HELD_MAX": "1", name: value})
    assert caught.value.name == name
