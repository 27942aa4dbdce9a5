import pytest

from sluice.codec import Struct, encode
from sluice.errors import BadRequest, Malformed, RequestRefused
from sluice.operations import Operation, build_error_reply, build_reply, parse_request, parse_result


class Lamp(Struct, frozen=True, kw_only=True):
    name: str
    watts: int = 0


class Light(Operation[Lamp], frozen=True, kw_only=True, tag="light"):
    changes = True
    name: str


class Look(Operation[tuple[Lamp, ...]], frozen=True, kw_only=True, tag="look"):
    pass


class Rest(Operation[None], frozen=True, kw_only=True, tag="rest"):
    pass


Lighting = Light | Look | Rest


def test_an_operation_says_its_tag_and_its_fields() -> None:
    assert encode(Light(name="hall")) == b'{"op":"light","name":"hall"}'
    assert encode(Rest()) == b'{"op":"rest"}'


@pytest.mark.parametrize(
    ("said", "operation"),
    [
        ({"op": "light", "name": "hall"}, Light(name="hall")),
        ('{"op": "light", "name": "hall"}', Light(name="hall")),
        (b'{"op": "look"}', Look()),
        ({"op": "rest"}, Rest()),
    ],
)
def test_a_request_is_read_from_an_event_and_from_a_text(said: dict[str, str] | str | bytes, operation: object) -> None:
    assert parse_request(said, Lighting) == operation


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "no such operation: None; there are light, look, rest"),
        ({"op": "dance"}, "no such operation: 'dance'; there are light, look, rest"),
        ({"op": ["rest"]}, r"no such operation: \['rest'\]"),
        ({"op": "light"}, "request: Object missing required field `name`"),
        ({"op": "light", "name": 5}, r"request: Expected `str`, got `int` - at `\$.name`"),
        ({"op": "rest", "name": "hall"}, "unknown field `name`"),
        ([], "request: Expected `object`, got `array`"),
        ("5", "request: Expected `object`, got `int`"),
        ('{"op": "dance"}', r"'dance' - at `\$.op`"),
        ("no JSON", "request: "),
        ("[" * 50_000, "request: "),
    ],
)
def test_what_is_no_operation_is_refused_with_the_place(said: dict[str, str] | str, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        parse_request(said, Lighting)


def test_who_asks_gets_the_operation_s_own_result() -> None:
    lamp = Lamp(name="hall", watts=60)
    assert build_reply(lamp) == {"result": {"name": "hall", "watts": 60}}
    assert parse_result(Light(name="hall"), encode(build_reply(lamp))) == lamp
    assert parse_result(Look(), encode(build_reply((lamp, lamp)))) == (lamp, lamp)
    assert parse_result(Rest(), encode(build_reply(None))) is None


def test_a_refusal_is_the_function_s_own_words() -> None:
    refused = encode(build_error_reply(BadRequest("no such lamp: hall")))
    assert refused == b'{"error":"no such lamp: hall"}'
    with pytest.raises(RequestRefused, match=r"^no such lamp: hall$"):
        parse_result(Light(name="hall"), refused)


@pytest.mark.parametrize("reply", ["{}", "5", "no JSON", '{"result": {"name": 5}}', '{"result": null}'])
def test_what_is_no_reply_is_malformed(reply: str) -> None:
    with pytest.raises(Malformed, match=r"^light: "):
        parse_result(Light(name="hall"), reply)


def test_an_operation_knows_whether_there_may_be_more_to_do_after_it() -> None:
    assert (Light.changes, Look.changes, Rest.changes) == (True, False, False)
