"""What is generated: characters that SQS takes or refuses, JSON that is bent out of shape, attributes of all kinds."""

import base64
import copy
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from sluice.message import Value
from tests.hostile.limits import ADDRESSES

INFINITE, NO_NUMBER = float("inf"), float("nan")
MAX_DIGITS = 4_300  # that Python reads
LONG = 5_000

taken_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff").filter(
    lambda character: character in "\t\n\r" or character >= " "
)
refused_characters = st.sampled_from(
    [*map(chr, range(9)), "\x0b", "\x0c", *map(chr, range(0x0E, 0x20)), "\ufffe", "\uffff"]
)
odd_texts = st.sampled_from(
    [
        *(
            "",
            " ",
            "\t\r\n",
            "\u202e",
            "\u0130\u0131",
            "\ufb03",
            "e\u0301" * 50,
            "\U0001f469\u200d\U0001f4bb",
            "\u2028",
        ),
        *("null", "NaN", "Infinity", "1e999999", "-0", "0x10", "true", "[]", "{}", "../../etc/passwd", "%00", "${x}"),
        *("*", "#", "a.#.*.#", "@", "aws.x", "x" * LONG, "." * LONG, "\u20ac" * LONG, "9" * LONG),
    ]
)
addresses = st.sampled_from(ADDRESSES)  # of clients and proxies: fed where these may be, as a log may have none
sqs_texts = st.one_of(odd_texts, st.text(taken_characters, max_size=40))
# In an escape of JSON there are also those that SQS refuses, and halves of a character.
any_texts = st.one_of(sqs_texts, st.text(refused_characters, max_size=4), st.sampled_from(["\ud800", "a\udfffb"]))

numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**64), 10**400, 10 ** (MAX_DIGITS - 1), 1 << 14_000]),
    st.floats(),
    st.sampled_from([INFINITE, -INFINITE, NO_NUMBER, 1e308, 5e-324, -0.0]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, any_texts)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(any_texts, inner, max_size=4)),
    max_leaves=8,
)


@st.composite
def bent(draw: st.DrawFn, well: Any, others: st.SearchStrategy[Any] = documents) -> Any:
    """A document that is well, but for some places: there is something else, or nothing, or one thing more."""
    document = copy.deepcopy(well)
    for _ in range(draw(st.integers(0, 3))):
        holder, places = draw(st.sampled_from([*_holders(document), (None, [])]))
        if holder is None:
            return draw(st.one_of(st.just(document), others))
        what = draw(st.sampled_from(["other", "none", "more"]))
        place = draw(st.sampled_from(places)) if places else None
        if place is None or what == "more":
            if isinstance(holder, dict):
                holder[draw(any_texts)] = draw(others)
            else:
                holder.append(draw(others))
        elif what == "none":
            del holder[place]
        else:
            holder[place] = draw(others)
    return document


def _holders(document: Any) -> list[tuple[Any, list[Any]]]:
    if isinstance(document, dict):
        return [(document, list(document)), *(found for each in document.values() for found in _holders(each))]
    if isinstance(document, list):
        return [(document, list(range(len(document)))), *(found for each in document for found in _holders(each))]
    return []


@st.composite
def spelled(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> str:
    """JSON as a text that SQS takes: escapes and all, now and then cut off, said twice, or with what isn't JSON."""
    text = json.dumps(draw(values), ensure_ascii=True)
    damage = draw(st.sampled_from(["", "", "", "", "cut", "twice", "deep", "key"]))
    if damage == "cut":
        text = text[: draw(st.integers(0, len(text)))]
    elif damage == "twice":
        text += text
    elif damage == "deep":
        text = "[" * LONG + text
    elif damage == "key" and text.startswith("{") and len(text) > 2:
        text = f"{text[:-1]}, {text[1:]}"  # each key is there twice
    return text or " "


@st.composite
def attributes(draw: st.DrawFn, *names: str) -> Mapping[str, Value]:
    """Attributes that SQS takes, at most ten: some by these names."""
    plain = st.text("abcXYZ019_-", min_size=1, max_size=12)
    found = draw(st.lists(st.one_of(st.sampled_from(names), plain) if names else plain, max_size=10, unique=True))
    return {name: draw(_values) for name in found}


_labels = st.one_of(st.just(""), st.text("abc \u20ac", min_size=1, max_size=8).map(lambda label: f".{label}"))
_values = st.one_of(
    st.builds(lambda label, text: Value(f"String{label}", text), _labels, sqs_texts.filter(bool)),
    st.builds(
        lambda label, text: Value(f"Number{label}", text),
        _labels,
        st.sampled_from(["0", "-1.5", "1e125", "9" * 38, "1E-100", "+7", ".5", "00", "1e999999"]),
    ),
    st.builds(lambda label, content: Value(f"Binary{label}", content), _labels, st.binary(min_size=1, max_size=20)),
)


def in_base64(content: bytes) -> str:
    """As AMP paths have it."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
