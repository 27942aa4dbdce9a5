"""A queue that is split: messages, sessions and their filters, and who gets what, as the splitter's router decides."""

from collections import Counter

from sluice.message import Message, Value
from sluice.pictures.graph import draw_graph
from sluice.pictures.layout import Edge, Node
from sluice.pictures.svg import Colour, document
from sluice.splitting.filters.texts import FilterInput
from sluice.splitting.filters.values import Filter, Mode, Share
from sluice.splitting.routing.router import Router

USERS = ("alice", "carol", "alice", "bob", "dave", "carol", "dave", "erin", "bob", "erin", "frank", "frank")
COUNTRIES = ("DE", "FR", "FR", "DE", "IR", "DE", "FR", "IR", "FR", "DE", "IR", "FR")
SESSIONS = (
    Share(session_id="1", key="alice", started_at_ms=1, filter=Filter(attributes=(("user", "^alice$"),))),
    Share(
        session_id="2",
        key="dora",
        started_at_ms=2,
        filter=Filter(attributes=(("country", "^DE$"),)),
        mode=Mode.MIRROR,
    ),
    Share(session_id="3", key="bob", started_at_ms=3, filter=Filter(attributes=(("user", "^(bob|carol)$"),))),
)
COLOURS = {"alice": Colour.ONE, "dora": Colour.TWO, "bob": Colour.THREE}


def drawn() -> str:
    """Route each message, and draw how many went where."""
    stolen, mirrored, left = routed()
    nodes = {
        "producers": Node(lines=("producers",), dashed=True),
        "source": Node(lines=("source queue", f"{len(USERS)} messages")),
        "splitter": Node(lines=("splitter λ", "first match wins"), colour=Colour.GOOD),
        "main": Node(lines=("main queue", f"{left} messages")),
        "consumer": Node(lines=("deployed consumer",), dashed=True),
    }
    edges = [
        Edge(source="producers", dest="source"),
        Edge(source="source", dest="splitter"),
    ]
    for session in SESSIONS:
        key, is_mirror = session.key, session.mode is Mode.MIRROR
        [(name, pattern)] = session.filter.attributes
        count = (mirrored if is_mirror else stolen)[key]
        what = "copies" if is_mirror else "messages"
        nodes[key] = Node(lines=(f"{key}'s queue", f"{count} {what}"), colour=COLOURS[key])
        nodes[f"{key}'s"] = Node(lines=(f"{key}'s program",), dashed=True)
        label = f"{name}: {pattern}", "mirrors" if is_mirror else "steals"
        dash = "6 4" if is_mirror else ""
        edges += [
            Edge(source="splitter", dest=key, lines=label, colour=COLOURS[key], dash=dash),
            Edge(source=key, dest=f"{key}'s"),
        ]
    edges += [
        Edge(source="splitter", dest="main", lines=("all others",)),
        Edge(source="main", dest="consumer"),
    ]
    graph = draw_graph(nodes, edges)
    return document(graph.size, graph.parts, title="A split queue: who gets which messages")


def routed() -> tuple[Counter[str], Counter[str], int]:
    """Route the messages: how many each session steals, and mirrors, by its key, and how many are left."""
    router = Router.build(SESSIONS, decide=_no_program)
    stolen, mirrored = Counter[str](), Counter[str]()
    left = 0
    for number, (user, country) in enumerate(zip(USERS, COUNTRIES, strict=True)):
        attributes = {"user": Value("String", user), "country": Value("String", country)}
        sight = FilterInput.from_message(Message(message_id=str(number), body="", attributes=attributes))
        recipients = router.find_recipients(sight)
        mirrored.update(share.key for share in recipients.mirroring)
        if recipients.stealing is None:
            left += 1
        else:
            stolen[recipients.stealing.key] += 1
    return stolen, mirrored, left


def _no_program(program: str, document: str) -> bool:
    raise NotImplementedError(program, document)
