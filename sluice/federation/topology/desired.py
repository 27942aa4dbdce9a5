"""Defines and parses topology files: sites, each with its exchanges, bindings, peers, links and routes. Pure.

Entries have the fields of the operations that create them. A file doesn't contain the addresses of its sites: each site
reports its own address, and how it is reached, when the file is used.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import fields, replace

from sluice.codec import Struct, encode, pick_shared_fields
from sluice.errors import BadBinding, BadTopology, Malformed
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Address, Bridge, Endpoint, Introduction, Link
from sluice.federation.links.peers import Peer, Rules
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.matching.metadata import is_tag

MAX_SITES = 200

T = TypeVar("T")

_PLACE = re.compile(r"(?P<cause>.*) - at (?:`key` in )?`\$(?P<place>.*)`", re.DOTALL)


class PeerLocation(Struct, frozen=True, kw_only=True):
    """The address of a peer that isn't a site of the file, as `sluice link address` shows it at the peer."""

    account: str
    region: str
    senders: tuple[str, ...] = ()
    sqs_url: str | None = None
    stage: str | UnsetType = UNSET


class DesiredPeer(Struct, frozen=True, kw_only=True):
    """A site that may link to this site, and its permissions. A peer that is a site of the file has no `place`."""

    tag: str
    pulls: Rules = ()
    pushes: Rules = ()
    queues: Rules = ()
    leads: Rules = ()
    place: PeerLocation | None = None

    @classmethod
    def from_peer(cls, peer: Peer, *, address: Introduction | None) -> "DesiredPeer":
        """Return the peer as an entry of a file. `address` is the peer's address, if known."""
        said = cls(**pick_shared_fields(peer, cls))
        is_place_known = address is not None and said.peer(address) == replace(
            peer, tags=(), declared=False, granted=UNSET
        )
        return said if is_place_known else replace(said, place=PeerLocation(**pick_shared_fields(peer, PeerLocation)))

    def peer(self, address: Introduction | None) -> Peer:
        """Return the peer at its `place` or, without a place, at `address`. Raises `Malformed` if both are missing."""
        place = self.place or address
        if place is None:
            raise Malformed(f"{self.tag} is no site of this file: it needs a place")
        return Peer(**{**pick_shared_fields(place, Peer), **pick_shared_fields(self, Peer)})


class LinkAccess(Struct, frozen=True, kw_only=True):
    """The endpoints and the role to reach a peer, if these don't follow from the peer's address."""

    endpoints: tuple[Endpoint, ...]
    role_arn: str | None = None
    external_id: str | None = None

    @classmethod
    def default_for(cls, peer: Address, *, here: Address) -> "LinkAccess":
        """Return the access that follows from the peer's address. Sites of one account need no role."""
        by_role = peer.role_arn is not None and peer.account != here.account
        return cls(
            endpoints=(peer.endpoint,),
            role_arn=peer.role_arn if by_role else None,
            external_id=peer.external_id if by_role else None,
        )


class DesiredLink(Struct, frozen=True, kw_only=True):
    """A link to a peer. Without `access`, the peer is a site of the file, whose address determines the access."""

    name: str
    peer: str
    durable: bool = True
    access: LinkAccess | None = None

    @classmethod
    def from_link(cls, link: Link, *, here: Address, peer: Address | None) -> "DesiredLink":
        """Return a link of the site `here` as an entry of a file. `peer` is the peer's address, if known."""
        access = LinkAccess(**pick_shared_fields(link, LinkAccess))
        follows = peer is not None and access == LinkAccess.default_for(peer, here=here)
        return cls(name=link.name, peer=link.peer, durable=link.durable, access=None if follows else access)

    def link(self, *, here: Address, peer: Address | None) -> Link:
        """Return the link. Raises `Malformed` if the link has no access and the peer's address isn't known."""
        access = self.access
        if access is None:
            if peer is None:
                raise Malformed(f"{self.peer} is no site of this file: the link needs access")
            access = LinkAccess.default_for(peer, here=here)
        return Link(**pick_shared_fields(self, Link), **pick_shared_fields(access, Link))


class DesiredSite(Struct, frozen=True, kw_only=True):
    """One site. `at` names it in commands: `REGION`, `PROFILE@REGION`, or `ACCOUNT/REGION` of the embedded cloud.

    The file leaves out the standard exchanges, and the links and routes that peers requested.
    """

    at: str
    peers: tuple[DesiredPeer, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[BindingDeclaration, ...] = ()
    links: tuple[DesiredLink, ...] = ()
    routes: tuple[Bridge, ...] = ()


class DesiredTopology(Struct, frozen=True, kw_only=True):
    """The content of a topology file: its sites by tag."""

    sites: Annotated[Mapping[str, DesiredSite], Meta(min_length=1, max_length=MAX_SITES)]


class _Outline(Struct, frozen=True, kw_only=True):
    sites: Annotated[dict[str, dict[str, Any]], Meta(min_length=1, max_length=MAX_SITES)]


def parse_topology(document: object) -> DesiredTopology:
    """Convert the parsed YAML of a file. Raises a `BadTopology`, whose text names the invalid place."""
    sites: dict[str, DesiredSite] = {}
    for tag, said in _convert(document, _Outline, "").sites.items():
        place = f"sites.{tag}"
        if not is_tag(tag):
            raise BadTopology("sites", f"{tag[:80]!r} is no site's tag")
        site = _convert({**said, **{name: () for name in _ENTRY_TYPES if name in said}}, DesiredSite, place)
        # Entries are converted one by one, because the decoder's errors don't name the place in the file.
        entries = {
            name: tuple(
                _convert(entry, type_, f"{place}.{name}[{number}]")
                for number, entry in enumerate(_convert(said.get(name, ()), list[Any], f"{place}.{name}"))
            )
            for name, type_ in _ENTRY_TYPES.items()
        }
        sites[tag] = replace(site, **entries)
    return DesiredTopology(sites=sites)


_ENTRY_TYPES: Mapping[str, Any] = {
    name: get_args(type_)[0] for name, type_ in get_type_hints(DesiredSite).items() if name != "at"
}


def _convert(document: object, type_: type[T], place: str) -> T:
    try:
        value: T = msgspec.convert(document, type_)
        if isinstance(value, Struct) and not isinstance(value, _Outline):
            encode(value)  # Encode to find errors, as requests to sites encode values in the same way.
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        cause, within = (match["cause"], match["place"]) if match else (str(error), "")
        raise BadTopology(f"{place}{within}".removeprefix("."), cause) from None
    except (BadBinding, UnicodeError, OverflowError) as error:
        raise BadTopology(place, str(error)) from None
    for name, argument in value.arguments.items() if isinstance(value, BindingDeclaration) else ():
        if isinstance(argument, float) and not math.isfinite(argument):
            raise BadTopology(f"{place}.arguments.{name}", "infinite, or no number")
    return value


def to_plain_values(value: object) -> Any:
    """Return plain values for a YAML encoder. Fields with their defaults are left out, and sets are sorted."""
    if isinstance(value, Struct):
        shown = {}
        for field in fields(value):
            own = getattr(value, field.name)
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if own != default:
                shown[field.encode_name] = to_plain_values(own)
        return shown
    if isinstance(value, Mapping):
        return {name: to_plain_values(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [to_plain_values(item) for item in value]
    return msgspec.to_builtins(value, order="deterministic")


def schema() -> dict[str, Any]:
    """Return the JSON schema of topology files, for checks in editors."""
    made = msgspec.json.schema(DesiredTopology)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A topology of Sluice", **made}
