"""Malformed and odd bodies, each with the bytes of its reply, as they follow from Snowflake's rules and Go's JSON.

Where the reply is the JSON decoder's own words (`SYNTAX`) these are Python's, by its decoder as it is.
"""

import json
from collections.abc import Iterator

FINGERPRINT = "2B280B23E1107BB62ABFC40DDCC8824814F80A72"
DESCRIPTION = r'{"type":"offer","sdp":"v=0\r\n"}'
OFFER = json.dumps(DESCRIPTION)

VERSION = "unsupported message version"
NO_OFFER = "no supplied offer"
MALFORMED = "malformed session description: "
NO_TYPE = MALFORMED + "cannot deserialize SessionDescription without type field"
NO_SDP = MALFORMED + "cannot deserialize SessionDescription without sdp field"
BAD_TYPE = MALFORMED + "invalid SDP type"
BAD_SDP = MALFORMED + "invalid SDP"
UNKNOWN_TYPE = MALFORMED + "Unknown SDP type"
HEX = "cannot decode fingerprint"
BRIDGE = "bridge with requested fingerprint is unknown to the broker"
DENIED = "no snowflake proxies currently available"  # what a well-formed offer gets where no proxy waits
DEEP = "exceeded max depth"

NO_VERSION = [
    "1.0", "1.0{}", "\n", "\n1.0\n{}", " 1.0\n{}", "1.0 \n{}", "1.0\r\n{}", "1.0\r{}", "1\n{}", "1.\n{}",
    "01.0\n{}", "1.00\n{}",
    "1.1\n{}", "2.0\n{}", "-1.0\n{}", "1,0\n{}", "1.0.0\n{}", "v1.0\n{}", "\ufeff1.0\n{}", "\uff11.0\n{}",
    "1.0\u2028{}",
    "null", "[]", '"1.0"\n{}', "a=candidate",
]  # fmt: skip
SYNTAX = [
    "", " ", "\n", "{", "}", "[", "]", '"', '{"offer"', '{"offer":', '{"offer":"x"', '{"offer":"x",',
    '{"offer":"x",}', "{,}",
    "{'offer':'x'}", '{offer:"x"}', '{"a" "b"}', '{"a":1 "b":2}', "[1,]", "{}}", "{} {}", "{}x", "{}\0", "{}\ufeff",
    "nul", "nulL",
    "True", "undefined", "\ufeff{}", "\u00a0{}", "\u2003{}", "\v{}", "\f{}", "\0{}", "// c\n{}", "/**/{}", "#\n{}",
    '{"a":01}',
    '{"a":-01}', '{"a":1.}', '{"a":.5}', '{"a":+1}', '{"a":-}', '{"a":0x1}', '{"a":1e}', '{"a":1_000}', '{"a":\uff11}',
    r'{"a":"\x41"}',
    r'{"a":"\u12"}', r'{"a":"\u12g4"}', r'{"a":"\U00000041"}', r'{"a":"\'"}', '{"a":"\t"}', '{"a":"\n"}',
    '{"a":"\0"}', '{"a":"\x1f"}', '{"a":"', '{"a":"\\', "{1:2}", "{null:1}", '{"a":}', "--1", "1 2", "=", '{"a":1}]',
    '{"offer":"x"}1.0', "<html>", "a=candidate:1",
]  # fmt: skip
# JSON to Python's decoder unless it is told otherwise.
CONSTANTS = {
    "NaN": "NaN is not JSON", "Infinity": "Infinity is not JSON", "-Infinity": "-Infinity is not JSON",
    '{"nat":NaN}': "NaN is not JSON", '{"unknown":[-Infinity]}': "-Infinity is not JSON",
}  # fmt: skip
TOP_LEVEL = {
    "[]": "array", "[{}]": "array", '"x"': "string", '""': "string", "0": "number", "-1.5e3": "number",
    "1e999": "number",
    "true": "boolean", "false": "boolean",
}  # fmt: skip
WITHOUT_OFFER = [
    "{}", " {} ", "\r\n\t {}\r\n\t ", "null", " null\n", '{"offer":""}', '{"offer":null}',
    '{"OFFER":null,"offer":""}', '{"x":1}',
    '{"offers":"x"}',
    '{"":"x"}', '{"offer ":"x"}', '{"\ufb00er":"x"}', '{"o\ufb00er":"x"}', '{"offe\u0433":"x"}', '{"nat":"x"}',
    '{"fingerprint":"x"}', f'{{"x":{{"offer":{OFFER}}}}}', f'{{"offer":{OFFER},"Offer":""}}', r'{"offer\u0000":"x"}',
]  # fmt: skip
VALUES = {
    "1": "number", "1.5": "number", "1e999": "number", "9" * 5_000: "number", "true": "boolean", "false": "boolean",
    "[]": "array", '["x"]': "array", "{}": "object", DESCRIPTION: "object",
}  # fmt: skip
FIELDS = ("offer", "nat", "fingerprint")
DESCRIPTIONS = {
    "null": NO_TYPE,
    "{}": NO_TYPE,
    " {} ": NO_TYPE,
    '{"sdp":"v=0"}': NO_TYPE,
    '{"sdp":1}': NO_TYPE,
    '{"Type":"offer","SDP":"v=0"}': NO_TYPE,
    '{"TYPE":"offer","sdp":"v=0"}': NO_TYPE,
    '{"":"offer","sdp":""}': NO_TYPE,
    '{"x":{"type":"offer","sdp":""}}': NO_TYPE,
    '{"type":"offer"}': NO_SDP,
    '{"type":1}': NO_SDP,
    '{"type":null}': NO_SDP,
    '{"type":"x"}': NO_SDP,
    '{"type":"offer","SDP":""}': NO_SDP,
    '{"type":"offer","\u017fdp":""}': NO_SDP,
    '{"type":null,"sdp":""}': BAD_TYPE,
    '{"type":1,"sdp":""}': BAD_TYPE,
    '{"type":1,"sdp":1}': BAD_TYPE,
    '{"type":[],"sdp":null}': BAD_TYPE,
    '{"type":{},"sdp":""}': BAD_TYPE,
    '{"type":true,"sdp":""}': BAD_TYPE,
    '{"type":["offer"],"sdp":""}': BAD_TYPE,
    '{"type":"offer","type":null,"sdp":""}': BAD_TYPE,
    '{"type":"offer","sdp":null}': BAD_SDP,
    '{"type":"offer","sdp":1}': BAD_SDP,
    '{"type":"x","sdp":1}': BAD_SDP,
    '{"type":"","sdp":[]}': BAD_SDP,
    '{"type":"offer","sdp":{}}': BAD_SDP,
    '{"type":"offer","sdp":false}': BAD_SDP,
    '{"type":"offer","sdp":"v=0","sdp":null}': BAD_SDP,
    '{"type":"","sdp":""}': UNKNOWN_TYPE,
    '{"type":"Offer","sdp":""}': UNKNOWN_TYPE,
    '{"type":"OFFER","sdp":""}': UNKNOWN_TYPE,
    '{"type":" offer","sdp":""}': UNKNOWN_TYPE,
    '{"type":"offer\\u0000","sdp":""}': UNKNOWN_TYPE,
    '{"type":"hi","sdp":""}': UNKNOWN_TYPE,
    '{"type":"offer","type":"hi","sdp":""}': UNKNOWN_TYPE,
    '{"type":"<b>&\\u2028","sdp":""}': UNKNOWN_TYPE,
    "[]": MALFORMED + "cannot read a JSON array as an object",
    '[{"type":"offer","sdp":""}]': MALFORMED + "cannot read a JSON array as an object",
    '"offer"': MALFORMED + "cannot read a JSON string as an object",
    "1": MALFORMED + "cannot read a JSON number as an object",
    "true": MALFORMED + "cannot read a JSON boolean as an object",
    '{"type":"offer","sdp":"","x":NaN}': MALFORMED + "NaN is not JSON",
    '{"type":"offer","sdp":"","x":1e999}': MALFORMED + "cannot read number 1e999 as float64",
    '{"type":"offer","sdp":"","x":-1e400}': MALFORMED + "cannot read number -1e400 as float64",
    '{"type":"offer","sdp":"","x":' + "9" * 400 + "}": MALFORMED + f"cannot read number {'9' * 32} as float64",
    "[" * 100_000: MALFORMED + DEEP,
    '{"type":"offer","sdp":"' + "x" * 100_000 + '"}': MALFORMED + "larger than 100000 bytes",
    DESCRIPTION: DENIED,
    f" {DESCRIPTION}\n": DENIED,
    '{"type":"answer","sdp":""}': DENIED,
    '{"type":"pranswer","sdp":""}': DENIED,
    '{"type":"rollback","sdp":""}': DENIED,
    '{"sdp":"","type":"offer"}': DENIED,
    '{"type":null,"type":"offer","sdp":1,"sdp":""}': DENIED,
    '{"type":"offer","sdp":"","x":[1e-999,-0,1E+2,"\\ud800"]}': DENIED,
    '{"\\u0074ype":"\\u006fffer","sdp":"a=candidate"}': DENIED,
    '{"type":"offer","sdp":"","x":' + "[" * 300 + "]" * 300 + "}": DENIED,
}
SYNTAX_OF_DESCRIPTIONS = [
    "hello",
    "v=0",
    "{",
    "{}{}",
    "'",
    '{"type":"offer","sdp":"',
    '{"type":"offer","sdp":"\n"}',
    "\ufeff{}",
]
FINGERPRINTS = {
    "": DENIED,
    FINGERPRINT: DENIED,
    FINGERPRINT.lower(): DENIED,
    "g" * 40: HEX,
    "0": HEX,
    "00": HEX,
    "ab" * 19: HEX,
    "ab" * 21: HEX,
    "ab" * 31: HEX,
    "ab" * 33: HEX,
    FINGERPRINT[1:]: HEX,
    FINGERPRINT + "0": HEX,
    f" {FINGERPRINT}": HEX,
    f"{FINGERPRINT}\\n": HEX,
    f"0x{FINGERPRINT[2:]}": HEX,
    f"${FINGERPRINT}": HEX,
    FINGERPRINT.replace("2", "\uff12"): HEX,
    " ".join(["ab"] * 20): HEX,
    "-" * 40: HEX,
    "null": HEX,
    "ab" * 20: BRIDGE,
    "00" * 32: BRIDGE,
    FINGERPRINT + "00" * 12: BRIDGE,
}
NATS = {
    "": DENIED,
    "unknown": DENIED,
    "restricted": DENIED,
    "unrestricted": DENIED,
    "Unknown": DENIED,
    "RESTRICTED": DENIED,
    " restricted": DENIED,
    "restricted ": DENIED,
    "unrestricted\\u0000": DENIED,
    "symmetric": DENIED,
    "open": DENIED,
    "moderate": DENIED,
    "strict": DENIED,
    "null": DENIED,
    "0": DENIED,
    "<script>": DENIED,
    "\\ud800": DENIED,
}
WHOLE = {
    # In the protocol's order, whatever else is wrong.
    '{"offer":"","fingerprint":"x","nat":"x"}': NO_OFFER,
    '{"offer":"{}","fingerprint":"x","nat":"x"}': NO_TYPE,
    f'{{"offer":{OFFER},"fingerprint":"x","nat":"x"}}': HEX,
    f'{{"offer":{OFFER},"fingerprint":"{"ab" * 20}","nat":"x"}}': BRIDGE,
    f'{{"offer":{OFFER},"fingerprint":"{"ab" * 20}"}}': BRIDGE,
    f'{{"offer":{OFFER},"nat":1,"fingerprint":"x"}}': "cannot read a JSON number into field nat",
    # Of equal keys the last wins, and `null` says nothing; but a wrong type is one wherever it stands.
    f'{{"offer":{OFFER},"offer":null}}': DENIED,
    f'{{"offer":null,"offer":{OFFER}}}': DENIED,
    f'{{"offer":"x","offer":{OFFER}}}': DENIED,
    f'{{"offer":{OFFER},"OFFER":"{{}}"}}': NO_TYPE,
    f'{{"OFFER":"{{}}","offer":{OFFER}}}': DENIED,
    f'{{"offer":1,"offer":{OFFER}}}': "cannot read a JSON number into field offer",
    f'{{"offer":{OFFER},"nat":"x","NAT":"restricted"}}': DENIED,
    f'{{"offer":{OFFER},"nat":"restricted","NAT":"x"}}': DENIED,
    f'{{"offer":{OFFER},"nat":"x","NAT":null}}': DENIED,
    f'{{"offer":{OFFER},"nat":[],"nat":"restricted"}}': "cannot read a JSON array into field nat",
    f'{{"offer":{OFFER},"fingerprint":"x","fingerprint":""}}': DENIED,
    # Keys fold by characters, also those that aren't ASCII, and may be spelled by escapes.
    f'{{"oFfEr":{OFFER},"nAt":"x"}}': DENIED,
    f'{{"offer":{OFFER},"finGERprint":"x"}}': HEX,
    f'{{"offer":{OFFER},"\ufb01ngerprint":"x"}}': DENIED,
    f'{{"offer":{OFFER},"f\u0131ngerprint":"x"}}': DENIED,
    rf'{{"\u006fffer":{OFFER},"n\u0061t":"x"}}': DENIED,
    # What isn't known is passed over, whatever it is.
    f'{{"offer":{OFFER},"version":"9.9","x":{{"nat":"x"}},"y":[[]],"z":null}}': DENIED,
    f'{{"offer":{OFFER},"x":1e999,"y":{"9" * 5_000},"z":-0.0e-0}}': DENIED,
    f'{{"offer":{OFFER},"x":"\\ud800\\u0000<\u2028"}}': DENIED,
    f'{{"offer":{OFFER},"x":{"[" * 300}{"]" * 300}}}': DENIED,
    f'{{"offer":{OFFER},"x":{"[" * 10_001}{"]" * 10_001}}}': DEEP,
    f'\n\n {{ "offer" :\t{OFFER}\r\n}} \n': DENIED,
    "[" * 100_000: DEEP,
    '{"a":' * 100_000: DEEP,
}


def words(document: str) -> str:
    """What Python's decoder says of what isn't JSON."""
    try:
        json.JSONDecoder().decode(document)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{document} is JSON")


def clients() -> Iterator[tuple[str, str]]:
    """What a client may post by any method, with its error text."""
    yield from ((body, VERSION) for body in NO_VERSION)
    yield from ((f"1.0\n{document}", words(document)) for document in SYNTAX)
    yield from ((f"1.0\n{document}", text) for document, text in (CONSTANTS | WHOLE).items())
    yield from ((f"1.0\n{document}", f"cannot read a JSON {kind} as an object") for document, kind in TOP_LEVEL.items())
    yield from ((f"1.0\n{document}", NO_OFFER) for document in WITHOUT_OFFER)
    for field in FIELDS:
        for value, kind in VALUES.items():
            members = f'"{field}":{value}' if field == "offer" else f'"offer":{OFFER},"{field}":{value}'
            yield f"1.0\n{{{members}}}", f"cannot read a JSON {kind} into field {field}"
    yield from ((f'1.0\n{{"offer":{json.dumps(text)}}}', said) for text, said in DESCRIPTIONS.items())
    yield from ((f'1.0\n{{"offer":{json.dumps(text)}}}', MALFORMED + words(text)) for text in SYNTAX_OF_DESCRIPTIONS)
    yield from ((f'1.0\n{{"offer":{OFFER},"fingerprint":"{text}"}}', said) for text, said in FINGERPRINTS.items())
    yield from ((f'1.0\n{{"offer":{OFFER},"nat":"{text}"}}', said) for text, said in NATS.items())


# Bytes that are no UTF-8, which SQS has none of: within texts each is one U+FFFD, elsewhere no JSON.
BYTES = {
    b"\xff": VERSION,
    b"1.0\xff\n{}": VERSION,
    b"1.0\n\xff": words("\ufffd"),
    b"1.0\n{}\xc3": words("{}\ufffd"),
    b'1.0\n{"\xff":1}': NO_OFFER,
    b'1.0\n{"offer":"\xff"}': MALFORMED + words("\ufffd"),
    b'1.0\n{"nat":"\xe2\x82","offer":""}': NO_OFFER,
    b'1.0\n{"x":"\xed\xa0\x80","offer":' + OFFER.encode() + b"}": DENIED,
    "1.0\n{}".encode("utf-16"): VERSION,
    b"\xef\xbb\xbf1.0\n{}": VERSION,
    b"\x1f\x8b\x08\x00": VERSION,
}

# The legacy form, of HTTP alone: (body, NAT in the header or None) to a status without a body.
LEGACY = {
    (DESCRIPTION, None): 503,
    (DESCRIPTION, ""): 503,
    (DESCRIPTION, "unknown"): 503,
    (DESCRIPTION, "restricted"): 503,
    (DESCRIPTION, "unrestricted"): 503,
    (f"{DESCRIPTION}\n", None): 503,
    ('{"type":"answer","sdp":"<&>\u2028\U0001f469\\ud800"}', None): 503,
    ('{"type":"offer","sdp":"","nat":"symmetric"}', None): 503,
    (DESCRIPTION, "symmetric"): 503,
    (DESCRIPTION, "Restricted"): 503,
    (DESCRIPTION, "restricted, restricted"): 503,
    ("{", None): 400,
    ("{}", None): 400,
    ("{}\n1.0", None): 400,
    ('{"type":"offer"}', None): 400,
    ('{"type":"hi","sdp":""}', None): 400,
    ('{"type":"offer","sdp":null}', None): 400,
    ('{"offer":"{}"}', None): 400,
    (DESCRIPTION + DESCRIPTION, None): 400,
    ('{"a":' * 20_000, None): 400,
    ('{"type":"offer","sdp":"' + "x" * 100_000 + '"}', None): 400,
}

# Polls and answers

IDLE = '{"Status":"no match","Offer":"","NAT":"","NextPoll":20000,"RelayURL":""}'
REFUSED = '{"Status":"incorrect relay pattern","Offer":"","NAT":"","NextPoll":3600000,"RelayURL":""}'
POLL = {
    "Sid": '"s"', "Version": '"1.3"', "Type": '"standalone"', "NAT": '"unknown"', "Clients": "0",
    "AcceptedRelayPattern": '"$"',
}  # fmt: skip
BAD = None  # a 400 without a body
POLLED: dict[str, dict[str | None, list[str]]] = {  # one member each is another
    "Sid": {
        IDLE: ['"x"', '" "', r'"\ud800"', r'"\u0000"', '"<&>"', f'"{"s" * 90_000}"'],
        BAD: ['""', "null", "1", "[]", "{}", "true"],
    },
    "Version": {
        IDLE: ['"1"', '"1."', '"1.0"', '"1.99"', '"1.x.y"'],
        BAD: ['""', '"2.0"', '"01.0"', '" 1.3"', '"1 .3"', '"-1.3"', '"1,3"', '"v1.3"', "1.3", "1", "null"],
    },
    "Type": {
        IDLE: ['"webext"', '"badge"', '"iptproxy"', '"bloco"', '"Standalone"', r'"\ud800"', '""', "null"],
        BAD: ["1", "[]"],
    },
    "NAT": {
        IDLE: ['""', "null", '"restricted"', '"open"', '"moderate"', '"strict"', '"Restricted"', '"symmetric"', '" "'],
        BAD: ["0", "false"],
    },
    "Clients": {
        IDLE: ["8", "-8", "-0", "null", str(2**63 - 1), str(-(2**63))],
        BAD: [
            str(2**63), str(-(2**63) - 1), "9" * 5_000, "8.0", "8e0", "1e999", "-0.0", '"8"', '""', "true", "[]", "{}",
            "08", "+8", "0x8", "NaN", "Infinity", "8,", "",
        ],
    },
    "AcceptedRelayPattern": {
        IDLE: ['""', '"$"', '"torproject.net"', '"torproject.net$"', '"snowflake.torproject.net$"'],
        REFUSED: [
            "null", '"^snowflake.torproject.net$"', '"^$"', '"$$"', '"SNOWFLAKE.torproject.net"', '" $"', '"*"',
            '".*$"', '"01.snowflake.torproject.net$"',
        ],
        BAD: ["1", "[]"],
    },
}  # fmt: skip
POLLS: dict[bytes, str | None] = {
    b'{"Sid":"s","Version":"1.0"}': REFUSED,
    b'{"Sid":"s","Version":"1.0","AcceptedRelayPattern":""}': IDLE,
    b'{"sid":"s","VERSION":"1.0","acceptedrelaypattern":""}': IDLE,
    '{"\u017fid":"s","Ver\u017fion":"1.0","AcceptedRelayPattern":""}'.encode(): IDLE,
    b'{"Sid":"s","Version":"1.0","AcceptedRelayPattern":"$","AcceptedRelayPattern":null}': REFUSED,
    b'{"Sid":"s","Version":"1.0","AcceptedRelayPattern":null,"AcceptedRelayPattern":"$"}': IDLE,
    b'{"Sid":"s","Sid":null,"Version":"2","Version":"1","AcceptedRelayPattern":""}': IDLE,
    b'{"Sid":"s","Version":"1","AcceptedRelayPattern":"","Clients":"8","Clients":8}': BAD,
    b'{"Sid":"s","Version":"1","AcceptedRelayPattern":"","x":{"Sid":1},"y":1e999}': IDLE,
    b'{"Sid":"\xff","Version":"1","AcceptedRelayPattern":"$"}': IDLE,
    b'\xef\xbb\xbf{"Sid":"s","Version":"1","AcceptedRelayPattern":"$"}': BAD,
    b'\r\n\t {"Sid":"s","Version":"1","AcceptedRelayPattern":"$"} \n': IDLE,
    b'{"Sid":"s","Version":"1","AcceptedRelayPattern":"$"}\0': BAD,
    b'{"Sid":"s","Version":"1","AcceptedRelayPattern":"$"}{}': BAD,
    b'1.0\n{"Sid":"s","Version":"1","AcceptedRelayPattern":"$"}': BAD,
    b"Sid=s&Version=1.3": BAD,
    b"": BAD,
    b"null": BAD,
    b"[]": BAD,
    b'"s"': BAD,
    b"[" * 50_000: BAD,
    b" " * 100_001: BAD,
}
GONE = '{"Status":"client gone"}'
ANSWER_TEXT = json.dumps('{"type":"answer","sdp":"a=candidate:1"}')
ANSWERS: dict[str, str | None] = {
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT}}}': GONE,
    f'{{"Answer":{ANSWER_TEXT},"Sid":"s","Version":"1"}}': GONE,
    f'{{"version":"1.0","SID":"s","aNSWER":{ANSWER_TEXT},"NAT":1}}': GONE,
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT},"Answer":null}}': GONE,
    f'{{"Version":"1.3","Sid":"s","Answer":"x","Answer":{ANSWER_TEXT}}}': GONE,
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT},"Answer":"x"}}': BAD,
    f'{{"Version":"1.3","Sid":"s","Answer":1,"Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":"1.3","Sid":"","Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":"1.3","Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":"1.3","Sid":1,"Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Sid":"s","Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":"2.0","Sid":"s","Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":1.3,"Sid":"s","Answer":{ANSWER_TEXT}}}': BAD,
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT}}} ]': BAD,
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT.replace("a=c", "a=C")}}}': BAD,
    f'{{"Version":"1.3","Sid":"s","Answer":{ANSWER_TEXT.replace("a=c", "a=" + chr(92) + "u0063")}}}': BAD,
    # as it came
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"{\\"type\\":\\"answer\\",\\"sdp\\":\\"\\"}"}': GONE,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"{\\"type\\":\\"offer\\",\\"sdp\\":\\"\\"}"}': GONE,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"{\\"type\\":\\"hi\\",\\"sdp\\":\\"\\"}"}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"{\\"type\\":\\"answer\\"}"}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"{\\"Type\\":\\"answer\\",\\"sdp\\":\\"\\"}"}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":"null"}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":""}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":null}': BAD,
    '{"Version":"1.3","Sid":"s","x":"a=candidate","Answer":{"type":"answer","sdp":""}}': BAD,
    '{"Version":"1.3","Sid":"s","Answer":"a=candidate:1"}': BAD,
    "a=candidate": BAD,
    '"a=candidate"': BAD,
    '["a=candidate"]': BAD,
    "null": BAD,
    "": BAD,
    "a=candidate" + " " * 100_000: BAD,
}

AMP_PATHS = {
    "": "cannot decode URL path",
    "/": "cannot decode URL path",
    "0": "cannot decode URL path",
    "00": "cannot decode URL path",
    "/0/": "cannot decode URL path",
    "1/MS4wCg": "cannot decode URL path",
    "x0/MS4wCg": "cannot decode URL path",
    " 0/MS4wCg": "cannot decode URL path",
    "0MS4wCg": "cannot decode URL path",
    "0/M": "cannot decode URL path",
    "0/MS4wC": "cannot decode URL path",
    "0/MS4wCg==": "cannot decode URL path",
    "0/MS4wCnt9=": "cannot decode URL path",
    "0/MS4w Cg": "cannot decode URL path",
    "0/MS4wCn+9": "cannot decode URL path",
    "0/MS4wCg%3D": "cannot decode URL path",
    "0/MS4wCn\u0442": "cannot decode URL path",
    "0/": VERSION,
    "0//": VERSION,
    "0/MS4w": VERSION,
    "0/____": VERSION,
    "0/eyJ0eXBlIjoib2ZmZXIiLCJzZHAiOiIifQ": VERSION,  # the legacy form is of POST alone
    "0/MS4wCnt9": NO_OFFER,
    "0/MS4wCnt9/": VERSION,
    "0anything/at/all/MS4wCnt9": NO_OFFER,
    "0//MS4wCnt9": NO_OFFER,
}
