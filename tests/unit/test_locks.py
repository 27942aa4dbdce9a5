"""What locks pin, and who needs it."""

import io
from pathlib import Path

import pytest

from sluice.building.locks import NotPinned, main, parse_lock, resolve_pins

LOCK = f"""\
# a comment
alpha==1.0 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via sluice (pyproject.toml)
Beta_Two==2.0 ; sys_platform == 'win32' \\
    --hash=sha256:{"c" * 64}
    # via
    #   alpha
    #   delta
boto3==3.0
    # via alpha
botocore==3.0
    # via
    #   beta-two
    #   boto3
delta==4.0
    # via sluice (pyproject.toml)
epsilon==5.0
    # via beta.two
"""


def test_pins_are_of_all_that_is_needed_but_what_is_there_anyway() -> None:
    assert _named("alpha") == ["alpha", "beta-two", "epsilon"]
    assert _named("delta>=4; python_version > '3'") == ["beta-two", "delta", "epsilon"]


def test_what_isnt_pinned_is_named() -> None:
    with pytest.raises(NotPinned, match="doesn't pin zeta"):
        resolve_pins(["zeta"], LOCK)


def test_a_pin_has_the_hashes_of_its_files_and_its_platforms() -> None:
    pins = parse_lock(LOCK)
    assert str(pins["alpha"]) == f"alpha==1.0 --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}"
    assert str(pins["beta-two"]) == f"beta-two==2.0 ; sys_platform == 'win32' --hash=sha256:{'c' * 64}"
    assert (pins["epsilon"].version, pins["epsilon"].hashes, pins["epsilon"].marker) == ("5.0", (), "")


def _named(requirement: str) -> list[str]:
    return [pin.name for pin in resolve_pins([requirement], LOCK, without=("boto3", "botocore"))]


def test_a_part_of_a_lock_is_printed_for_some_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    described = tmp_path / "pyproject.toml"
    described.write_text(
        '[project]\ndependencies = ["delta>=4"]\noptional-dependencies = {one = ["alpha"], two = ["boto3"]}\n'
    )
    monkeypatch.setattr("sys.argv", ["locks", "--extra", "one", "--package", "botocore", str(described)])
    monkeypatch.setattr("sys.stdin", io.StringIO(LOCK))
    main()
    printed = capsys.readouterr().out
    assert [line.partition("==")[0] for line in printed.splitlines()] == [
        "alpha",
        "beta-two",
        "boto3",
        "botocore",
        "delta",
        "epsilon",
    ]
    assert printed.splitlines()[0] == str(parse_lock(LOCK)["alpha"])
