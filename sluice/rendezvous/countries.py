"""The country of an address, from a MaxMind database (MMDB) beside our code, where there is one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY, parse_address

if TYPE_CHECKING:
    from maxminddb import Reader

CODE_CHARACTERS = 2


@dataclass(slots=True)
class Countries:
    """Looks addresses up. `file` is the database's path; without one every country is unknown, and where it fails too.

    The database is opened, and its library imported, by the first look-up: what isn't asked for costs no start.
    """

    file: str | None = None
    _reader: "Reader | None" = field(default=None, repr=False)

    def of(self, address: str) -> str:
        """Look up two capital letters; `??` for what the database hasn't, as private addresses, and for no address."""
        found = parse_address(address)
        if self.file is None or found is None:
            return UNKNOWN_COUNTRY
        try:
            return country_of_record(self._open(self.file).get(found))
        except Exception:  # noqa: BLE001 - a database of IPv4 alone asked for IPv6, or a damaged one: no client waits for that
            return UNKNOWN_COUNTRY

    def _open(self, file: str) -> "Reader":
        if self._reader is None:
            import maxminddb  # noqa: PLC0415 - only where a file is configured: it is in no other bundle

            self._reader = maxminddb.open_database(file)
        return self._reader


def country_of_record(record: Any) -> str:
    """Find the code in a record: `country.iso_code` of MaxMind and DB-IP, `country_code` or `country` of others."""
    if not isinstance(record, dict):
        return UNKNOWN_COUNTRY
    country = record.get("country")
    code = country.get("iso_code") if isinstance(country, dict) else record.get("country_code", country)
    if not isinstance(code, str) or len(code) != CODE_CHARACTERS or not (code.isascii() and code.isalpha()):
        return UNKNOWN_COUNTRY
    return code.upper()
