"""What a stack writes into a function's environment is what the function reads."""

from collections.abc import Sequence
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


class Large(Trial, frozen=True, kw_only=True):
    STORED_FIELDS = frozenset({"places", "file"})


@given(
    st.builds(Large, table=st.text(min_size=1), held_max=st.integers(0, 9), places=st.dictionaries(st.text(), PLACES))
)
def test_what_is_stored_is_read_by_the_names_it_is_stored_under(settings: Large) -> None:
    environment = settings.environment(stored_under=["/a", "/b"])
    assert "PLACES" not in environment
    half = len(settings.encode_stored()) // 2
    parts = {"/a": settings.encode_stored()[:half], "/b": settings.encode_stored()[half:]}
    assert Large.read(environment, lambda names: "".join(parts[name] for name in names)) == settings


def test_nothing_is_asked_for_that_stands_in_the_environment() -> None:
    def refuse(names: Sequence[str]) -> str:
        raise AssertionError(names)

    settings = Large(table="t", held_max=1, places={"a": Place("b")})
    assert Large.read(settings.environment(), refuse) == settings


def test_what_is_stored_wrongly_is_named() -> None:
    with pytest.raises(BadSetting, match="environment variable PLACES: Expected `object`"):
        Large.read({"TABLE": "t", "HELD_MAX": "1", "STORED_SETTINGS": "/a"}, lambda _: '{"places":[]}')


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
    assert caught.value.place == name
