"""The rendezvous through an AMP cache: the request is in a URL's path, the reply is a page. Pure.

An AMP cache fetches and rewrites pages of the AMP subset of HTML. So a reply is *armored*: the version `0` and base64
text, split into short words, which caches don't truncate, inside `pre` elements.
"""

import base64
import re

from sluice.rendezvous.protocol.messages import decode_utf8

VERSION = "0"
_ENCODED = re.compile("[A-Za-z0-9_-]*", re.ASCII)
WORD = 32  # An armored reply is split into words of this length.
WORDS_IN_PRE = 992  # As in Snowflake, `pre` elements stay below 32 KiB.

# The parts that every AMP page needs, exactly as in the AMP specification: caches check them with regular expressions.
_PREFIXES = ("-webkit-", "-moz-", "-ms-", "")
_ANIMATIONS = ";".join(f"{prefix}animation:-amp-start 8s steps(1,end) 0s 1 normal both" for prefix in _PREFIXES)
_FRAMES = "".join(
    f"@{prefix}keyframes -amp-start{{from{{visibility:hidden}}to{{visibility:visible}}}}"
    for prefix in ("-webkit-", "-moz-", "-ms-", "-o-", "")
)
_STILL = ";".join(f"{prefix}animation:none" for prefix in _PREFIXES)
_HEAD = f"""<!doctype html>
<html amp>
<head>
<meta charset="utf-8">
<script async src="https://cdn.ampproject.org/v0.js"></script>
<link rel="canonical" href="#">
<meta name="viewport" content="width=device-width">
<style amp-boilerplate>body{{{_ANIMATIONS}}}{_FRAMES}</style>\
<noscript><style amp-boilerplate>body{{{_STILL}}}</style></noscript>
</head>
<body>
"""
_FOOT = "</body>\n</html>"


def decode_path(path: str) -> str:
    """Decode the path after `/amp/client/`: `0`, any padding, a slash, and base64url text. Raises ValueError."""
    padding, slash, encoded = path.rpartition("/")
    # Python's decoder would also accept characters of the standard alphabet, and `=` at the end.
    if not padding.startswith(VERSION) or not slash or not _ENCODED.fullmatch(encoded):
        raise ValueError("cannot decode URL path")
    try:
        return decode_utf8(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except ValueError:
        raise ValueError("cannot decode URL path") from None


def armor_reply(text: str) -> str:
    """Write the AMP page that carries a reply in armored form."""
    encoded = VERSION + base64.b64encode(text.encode()).decode()
    words = [encoded[start : start + WORD] for start in range(0, len(encoded), WORD)]
    elements = ("\n".join(words[start : start + WORDS_IN_PRE]) for start in range(0, len(words), WORDS_IN_PRE))
    return "".join([_HEAD, *(f"<pre>\n{element}\n</pre>\n" for element in elements), _FOOT])
