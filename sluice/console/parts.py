"""What pages read, ask and do, by name: a page's reading and its module in `static/pages` have one name."""

from collections.abc import Mapping

from sluice.console.readings import overview
from sluice.console.sites import Reader
from sluice.console.watching import Asked

READERS: Mapping[str, Reader] = {
    "overview": overview.read,
}
# Change nothing: also for who may only look.
QUESTIONS: Mapping[str, Asked] = {}
# With --allow-actions alone.
ACTIONS: Mapping[str, Asked] = {}
