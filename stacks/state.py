"""The stack of state that outlives the other stacks: tables, buckets, and the queues that hold messages."""

from constructs import Construct

from sluice.constructs.operations import create_alarms_topic
from sluice.constructs.references import ReferencedStack
from sluice.constructs.site import SiteState
from sluice.constructs.storage import encrypt_resources
from sluice.parameters import Parameters


class StateStack(ReferencedStack):
    """Stack `SluiceState`: tables, buckets and queues. They stay when functions are deployed again."""

    def __init__(self, scope: Construct, parameters: Parameters) -> None:
        super().__init__(scope, "SluiceState", parameters, description="state that is kept, and queues")
        encrypt_resources(self, parameters.kms_key_arn)
        self.site = SiteState.create(self, parameters)
        self.alarms_topic = create_alarms_topic(self, parameters)
