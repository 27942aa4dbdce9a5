"""Page *Overview*: a whole site, as `sluice status --json` has it."""

from sluice.cli.output import plain
from sluice.cli.site_status import AskedSite, read_site
from sluice.console.sites import Document, Query


def read(site: AskedSite, _: Query) -> Document:
    """Read all parts. Raises `NotUsable` where none can be asked, for one reason."""
    return plain(read_site(site).document)
