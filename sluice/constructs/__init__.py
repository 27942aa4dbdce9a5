"""CDK constructs of Sluice for your own app: `from sluice.constructs import SplitQueue, Exchange, …`.

Each construct's docstring describes its arguments and resources. docs/constructs.md has an example.
"""

from sluice.constructs.arguments import SiteProps
from sluice.constructs.exchange import Exchange
from sluice.constructs.operations import Operations
from sluice.constructs.pipeline import LandingPipeline
from sluice.constructs.rendezvous import Rendezvous
from sluice.constructs.site import Site
from sluice.constructs.splitting import SplitQueue, Splitting
from sluice.parameters import Architecture

__all__ = [
    "Architecture",
    "Exchange",
    "LandingPipeline",
    "Operations",
    "Rendezvous",
    "Site",
    "SiteProps",
    "SplitQueue",
    "Splitting",
]
