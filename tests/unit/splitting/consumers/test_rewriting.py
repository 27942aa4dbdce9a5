"""A consumer's configured text names another queue, and the first one again: nothing else in it changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadConsumer
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import Place

PREFIX = "arn:aws:sqs:eu-central-1:123456789012:"
OLD, NEW = "orders", "sluice-tmp-abcdef0123456789ab-main-orders"
URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/"


def pointed(text: str, place: Place, *, fifo: bool = False) -> str:
    suffix = ".fifo" if fifo else ""
    return rewrite(text, place, old=(PREFIX + OLD + suffix,), new=PREFIX + NEW + suffix, of="parameter /orders")


def put_back(text: str, place: Place, *, fifo: bool = False) -> str:
    suffix = ".fifo" if fifo else ""
    return rewrite(text, place, old=(PREFIX + NEW + suffix,), new=PREFIX + OLD + suffix, of="parameter /orders")


@pytest.mark.parametrize(
    "before",
    [
        "",
        PREFIX,
        URL,
        "http://localhost:4566/123456789012/",
        "https://queue.amazonaws.com/queue/eu-west-1/123456789012/",
    ],
)
@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_queue_is_named_by_its_name_its_arn_or_its_url_at_any_endpoint(before: str, suffix: str) -> None:
    check_named(before + OLD + suffix, Place(), queue=PREFIX + OLD + suffix, of="parameter /orders")
    changed = pointed(before + OLD + suffix, Place(), fifo=bool(suffix))
    assert changed == before + NEW + suffix
    assert pointed(changed, Place(), fifo=bool(suffix)) == changed
    assert put_back(changed, Place(), fifo=bool(suffix)) == before + OLD + suffix


def test_whichever_of_several_queues_is_named_is_replaced_and_two_of_them_are_refused() -> None:
    arns, place = (PREFIX + OLD, PREFIX + "first"), Place(pattern="[a-z]+")
    for named in (OLD, "first", NEW):
        assert rewrite(named, Place(), old=arns, new=PREFIX + NEW, of="parameter /orders") == NEW
    with pytest.raises(BadConsumer, match="doesn't name orders or first"):
        rewrite("theirs", place, old=arns, new=PREFIX + NEW, of="parameter /orders")
    with pytest.raises(BadConsumer, match="names both orders and first"):
        rewrite("first orders", place, old=arns, new=PREFIX + NEW, of="parameter /orders")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "other",
        "my-orders",
        " orders",
        "ORDERS",
        "orders.fifo",
        PREFIX.replace("1234", "9999") + OLD,
        PREFIX.replace("eu-central", "us-east") + OLD,
        URL.replace("1234", "9999") + OLD,
        URL + OLD + "?x",
        "ftp://host/123456789012/orders",
    ],
)
def test_what_does_not_name_the_queue_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(BadConsumer, match=r"^parameter /orders: doesn't name orders$"):
        pointed(text, Place())
    with pytest.raises(BadConsumer, match=r"^parameter /orders: doesn't name orders$"):
        check_named(text, Place(), queue=PREFIX + OLD, of="parameter /orders")


def test_json_keeps_its_spaces_its_order_and_its_escapes() -> None:
    text = '{ "b":\t1e3, "queues" : [ "\\u00e4\\ud83d\\ude00", '
    text += '"https:\\/\\/x\\/123456789012\\/orders" ,3],"a":{"queues":["orders"]} }'
    changed = pointed(text, Place(path=("queues", "[]")))
    assert changed == text.replace("\\/orders", "\\/" + NEW)
    assert put_back(changed, Place(path=("queues", "[]"))) == text


def test_each_value_of_an_object_is_one_that_the_path_leads_to() -> None:
    text = '{"first": "orders", "second": "others", "third": {"fourth": "orders"}}'
    assert pointed(text, Place(path=("[]",))) == text.replace('"first": "orders"', f'"first": "{NEW}"')


def test_a_pattern_in_json_counts_characters_as_they_are_written() -> None:
    text = '{"jdbc": "\\ud83d\\ude00\\n\\"q=orders;x=orders"}'
    place = Place(path=("jdbc",), pattern=r"q=(?P<queue>[^;]+)")
    assert pointed(text, place) == text.replace("q=orders", "q=" + NEW)
    assert put_back(pointed(text, place), place) == text


@pytest.mark.parametrize(
    ("text", "pattern", "changed"),
    [
        ("queue=orders,n=10", r"queue=([^,]+)", f"queue={NEW},n=10"),
        ("orders, orders ,other", r"[^, ]+", f"{NEW}, {NEW} ,other"),
        ("a=orders b=orders", r"(\w)=(?P<queue>\S+)", f"a={NEW} b={NEW}"),
        ("orders;orders", r"(x)?[^;]+;(?P<queue>.+)", f"orders;{NEW}"),
    ],
)
def test_a_pattern_means_its_group_queue_else_its_first_else_all_of_it(text: str, pattern: str, changed: str) -> None:
    place = Place(pattern=pattern)
    assert pointed(text, place) == changed
    assert pointed(changed, place) == changed
    assert put_back(changed, place) == text


@pytest.mark.parametrize(
    ("text", "place", "cause"),
    [
        ("orders", Place(path=("a",)), ".a: no JSON"),
        ('{"a": {"b": 1}}', Place(path=("a", "b")), ".a.b: doesn't name orders"),
        ('{"a": "orders"}', Place(path=("a", "b")), ".a.b: doesn't name orders"),
        ("{}", Place(path=("a",)), ".a: doesn't name orders"),
        ("[]", Place(path=("[]",)), r".\[\]: doesn't name orders"),
        ('["\\u006frders"]', Place(path=("[]",)), "orders is written with escapes"),
        ("orders", Place(pattern="("), "no pattern: missing"),
        ("a-orders", Place(pattern="orders"), "wouldn't be found again"),
        ("q:orders!", Place(pattern="q:(o.....)!"), "wouldn't be found again"),
        (f"orders {NEW}", Place(pattern=r"\S+"), f"names both orders and {NEW}"),
    ],
)
def test_what_cannot_be_rewritten_says_why_and_where(text: str, place: Place, cause: str) -> None:
    with pytest.raises(BadConsumer, match=cause):
        pointed(text, place)


NAMES = st.sampled_from([OLD, PREFIX + OLD, URL + OLD])
OTHERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = NAMES | OTHERS | st.integers() | st.none() | st.booleans()
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc[]"), inner, max_size=3),
    max_leaves=12,
)
PATHS = st.lists(st.sampled_from(["a", "b", "c", "[]"]), min_size=1, max_size=4).map(tuple)
WRITINGS = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.none() | st.integers(0, 2), "separators": st.just((" ,", ":  "))}
)


def replaced(document: Any, path: tuple[str, ...]) -> Any:
    """The literal way: through what a JSON reader makes of it."""
    if not path:
        ours = isinstance(document, str) and document in {OLD, PREFIX + OLD, URL + OLD}
        return document.removesuffix(OLD) + NEW if ours else document
    if isinstance(document, list) and path[0] == "[]":
        return [replaced(item, path[1:]) for item in document]
    if isinstance(document, dict):
        return {key: replaced(value, path[1:]) if path[0] in {key, "[]"} else value for key, value in document.items()}
    return document


@given(DOCUMENTS, PATHS, WRITINGS)
def test_a_document_changes_where_the_path_leads_and_nowhere_else(
    document: Any, path: tuple[str, ...], writing: dict[str, Any]
) -> None:
    text, place, expected = json.dumps(document, **writing), Place(path=path), replaced(document, path)
    if expected == document:
        with pytest.raises(BadConsumer):
            pointed(text, place)
        return
    changed = pointed(text, place)
    assert json.loads(changed) == expected
    assert pointed(changed, place) == changed
    assert put_back(changed, place) == text


PARTS = st.lists(st.sampled_from([OLD, URL + OLD, PREFIX + OLD, " ", ",", "=", "q", '"', "\\", "ä"]), max_size=8)
PATTERNS = st.sampled_from(
    [None, r"\S+", r"q=(\S+)", r"(?P<queue>[^,]*)", r"orders", r"(q)?=(.*)", r"[^,=\s]+", r"q|(orders)", r".{6}", r"$"]
)


@given(PARTS.map("".join), PATTERNS)
def test_whatever_is_changed_can_be_put_back_and_is_changed_once(text: str, pattern: str | None) -> None:
    place = Place(pattern=pattern)
    try:
        changed = pointed(text, place)
    except BadConsumer:
        return
    assert changed != text
    assert pointed(changed, place) == changed
    assert put_back(changed, place) == text
