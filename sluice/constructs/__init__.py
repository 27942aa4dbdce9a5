"""Sluice as constructs for somebody's own CDK app: `from sluice.constructs import SplitQueue, Exchange, …`.

What each takes, makes and grants is in its docstring. docs/constructs.md has an example.
"""

from sluice.constructs.exchange import Exchange
from sluice.constructs.operations import Operations
from sluice.constructs.pipeline import LandingPipeline
from sluice.constructs.rendezvous import Rendezvous
from sluice.constructs.site import Site
from sluice.constructs.splitting import SplitQueue, Splitting

__all__ = ["Exchange", "LandingPipeline", "Operations", "Rendezvous", "Site", "SplitQueue", "Splitting"]
