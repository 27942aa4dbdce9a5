"""What a topology file says: sites, each with its exchanges, bindings, peers, links and routes. Pure.

Entries have the fields of what sites are asked for. What the sites of a file know of each other isn't written down:
where they are, and how they are reached, each says itself when the file is used.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import fields, replace

from sluice.codec import Struct, encode, shared_fields
from sluice.errors import BadBinding, BadTopology, Malformed
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Address, Bridge, Endpoint, Introduction, Link
from sluice.federation.links.peers import EVERYTHING, Peer, Rules
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.matching.metadata import is_tag

MAX_SITES = 200

T = TypeVar("T")

_PLACE = re.compile(r"(?P<cause>.*) - at (?:`key` in )?`\$(?P<place>.*)`", re.DOTALL)


class PeerPlace(Struct, frozen=True, kw_only=True):
    """Where a peer is that is no site of the file, as its `sluice link address` says."""

    account: str
    region: str
    senders: tuple[str, ...] = ()
    sqs_url: str | None = None
    stage: str | UnsetType = UNSET


class DesiredPeer(Struct, frozen=True, kw_only=True):
    """A site that may link to this one, and what it may. Of a site of the file there is no `place`."""

    tag: str
    pulls: Rules = (EVERYTHING,)
    pushes: Rules = (EVERYTHING,)
    queues: Rules = ()
    place: PeerPlace | None = None

    @classmethod
    def of(cls, peer: Peer, *, address: Introduction | None) -> "DesiredPeer":
        """Return what a file says of the peer, which is at `address` where that is known."""
        said = cls(**shared_fields(peer, cls))
        is_there = address is not None and said.peer(address) == replace(peer, tags=(), declared=False)
        return said if is_there else replace(said, place=PeerPlace(**shared_fields(peer, PeerPlace)))

    def peer(self, address: Introduction | None) -> Peer:
        """Return the peer, which is at `address` where it has no place. Raises `Malformed` where there is neither."""
        place = self.place or address
        if place is None:
            raise Malformed(f"{self.tag} is no site of this file: it needs a place")
        return Peer(**{**shared_fields(place, Peer), **shared_fields(self, Peer)})


class LinkAccess(Struct, frozen=True, kw_only=True):
    """How a peer is reached, where that doesn't follow from its address: over which endpoints, by which role."""

    endpoints: tuple[Endpoint, ...]
    role_arn: str | None = None
    external_id: str | None = None

    @classmethod
    def to(cls, peer: Address, *, here: Address) -> "LinkAccess":
        """Return what follows from the peer's address: its role is for other accounts, as within one all may send."""
        by_role = peer.role_arn is not None and peer.account != here.account
        return cls(
            endpoints=(peer.endpoint,),
            role_arn=peer.role_arn if by_role else None,
            external_id=peer.external_id if by_role else None,
        )


class DesiredLink(Struct, frozen=True, kw_only=True):
    """A link to a peer. Without `access`, to a site of the file, as its address says."""

    name: str
    peer: str
    durable: bool = True
    access: LinkAccess | None = None

    @classmethod
    def of(cls, link: Link, *, here: Address, peer: Address | None) -> "DesiredLink":
        """Return what a file says of a link of the site `here`; `peer` is the other one's address, where known."""
        access = LinkAccess(**shared_fields(link, LinkAccess))
        follows = peer is not None and access == LinkAccess.to(peer, here=here)
        return cls(name=link.name, peer=link.peer, durable=link.durable, access=None if follows else access)

    def link(self, *, here: Address, peer: Address | None) -> Link:
        """Return the link. Raises `Malformed` where it has no access and the peer isn't known."""
        access = self.access
        if access is None:
            if peer is None:
                raise Malformed(f"{self.peer} is no site of this file: the link needs access")
            access = LinkAccess.to(peer, here=here)
        return Link(**shared_fields(self, Link), **shared_fields(access, Link))


class DesiredSite(Struct, frozen=True, kw_only=True):
    """One site, asked as commands name it: `REGION`, `PROFILE@REGION`, or `ACCOUNT/REGION` of the embedded cloud.

    Of its exchanges the standard ones aren't written down, of its links and routes those that its peers asked for.
    """

    at: str
    peers: tuple[DesiredPeer, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    bindings: tuple[BindingDeclaration, ...] = ()
    links: tuple[DesiredLink, ...] = ()
    routes: tuple[Bridge, ...] = ()


class DesiredTopology(Struct, frozen=True, kw_only=True):
    """What a file says, by the tags of its sites."""

    sites: Annotated[Mapping[str, DesiredSite], Meta(min_length=1, max_length=MAX_SITES)]


class _Outline(Struct, frozen=True, kw_only=True):
    sites: Annotated[dict[str, dict[str, Any]], Meta(min_length=1, max_length=MAX_SITES)]


def desired_topology(document: object) -> DesiredTopology:
    """Read what a YAML reader has made of a file. Raises `BadTopology`, which names the place."""
    sites: dict[str, DesiredSite] = {}
    for tag, said in _converted(document, _Outline, "").sites.items():
        place = f"sites.{tag}"
        if not is_tag(tag):
            raise BadTopology("sites", f"{tag[:80]!r} is no site's tag")
        site = _converted({**said, **{name: () for name in _LISTS if name in said}}, DesiredSite, place)
        # Entry by entry: in its decoder's words a place has no keys of maps, and what a type checks itself has none.
        entries = {
            name: tuple(
                _converted(each, type_, f"{place}.{name}[{number}]")
                for number, each in enumerate(_converted(said.get(name, ()), list[Any], f"{place}.{name}"))
            )
            for name, type_ in _LISTS.items()
        }
        sites[tag] = replace(site, **entries)
    return DesiredTopology(sites=sites)


_LISTS: Mapping[str, Any] = {
    name: get_args(type_)[0] for name, type_ in get_type_hints(DesiredSite).items() if name != "at"
}


def _converted(document: object, type_: type[T], place: str) -> T:
    try:
        value: T = msgspec.convert(document, type_)
        if isinstance(value, Struct) and not isinstance(value, _Outline):
            encode(value)  # as sites are told it
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        cause, within = (found["cause"], found["place"]) if found else (str(error), "")
        raise BadTopology(f"{place}{within}".removeprefix("."), cause) from None
    except (BadBinding, UnicodeError, OverflowError) as error:
        raise BadTopology(place, str(error)) from None
    for name, argument in value.arguments.items() if isinstance(value, BindingDeclaration) else ():
        if isinstance(argument, float) and not math.isfinite(argument):
            raise BadTopology(f"{place}.arguments.{name}", "infinite, or no number")
    return value


def as_document(value: object) -> Any:
    """Return what a YAML writer takes: fields that have their defaults are left out, and sets are in order."""
    if isinstance(value, Struct):
        shown = {}
        for field in fields(value):
            own = getattr(value, field.name)
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            if own != default:
                shown[field.encode_name] = as_document(own)
        return shown
    if isinstance(value, Mapping):
        return {name: as_document(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [as_document(each) for each in value]
    return msgspec.to_builtins(value, order="deterministic")


def schema() -> dict[str, Any]:
    """Return the JSON schema of a file, which editors check it by."""
    made = msgspec.json.schema(DesiredTopology)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A topology of Sluice", **made}
