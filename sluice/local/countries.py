"""A database of countries for the embedded cloud, where every client is on the loopback: 127.0.0.0/8 divided up."""

from collections.abc import Mapping
from pathlib import Path

from mmdb_writer import MMDBWriter
from netaddr import IPSet

COUNTRIES: Mapping[str, str] = {"DE": "127.49.0.0/16", "FR": "127.33.0.0/16", "IR": "127.98.0.0/16"}
"""The code of each, and what stands for its addresses."""


def address_in(country: str) -> str:
    """Give the first address of a country."""
    network, _, _ = COUNTRIES[country].partition("/")
    return network.removesuffix("0") + "1"


def write_database(path: Path) -> None:
    """As MaxMind's own databases of countries are. One that is there stays: the next would differ in its time alone."""
    if path.exists() and path.stat().st_mtime > Path(__file__).stat().st_mtime:
        return
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type="Sluice-Loopback-Country")
    for code, network in COUNTRIES.items():
        writer.insert_network(IPSet([network]), {"country": {"iso_code": code}})
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.to_db_file(str(path))
