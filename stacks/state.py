"""State that outlives the other stacks: tables, buckets, and the queues that hold messages.

A stack's one construct has the id `Default`, which CDK leaves out of logical ids, so a deployed site keeps its
resources if another construct creates them.
"""

from aws_cdk import Stack
from constructs import Construct

from sluice.constructs.operations import alarms_topic
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix


class StateStack(Stack):
    """Stack `SluiceState`: what outlives a deployment of functions, tables, and the queues between functions."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(
            scope,
            add_stage_prefix("SluiceState", parameters.stage),
            description="Sluice: state that is kept, and queues",
        )
        self.site = SiteState.create(self, parameters, ours=True)
        self.alarms_topic = alarms_topic(self, parameters)
