"""The stack of state that outlives the other stacks: tables, buckets, and the queues that hold messages.

Each stack has one construct, whose id is `Default`. CDK leaves that id out of logical ids, so a deployed site keeps its
resources if another construct creates them.
"""

from aws_cdk import Stack
from constructs import Construct

from sluice.constructs.operations import alarms_topic
from sluice.constructs.site import SiteState
from sluice.parameters import Parameters
from sluice.stages import add_stage_prefix


class StateStack(Stack):
    """Stack `SluiceState`: tables, buckets and queues, which stay when functions are deployed again."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(
            scope,
            add_stage_prefix("SluiceState", parameters.stage),
            description="Sluice: state that is kept, and queues",
        )
        self.site = SiteState.create(self, parameters, ours=True)
        self.alarms_topic = alarms_topic(self, parameters)
