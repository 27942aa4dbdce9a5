"""The CDK stacks: what is deployed, and with which rights. The functions' code is in `functions`."""

# CDK leaves this id out of logical ids: https://docs.aws.amazon.com/cdk/v2/guide/identifiers.html
# So a deployed site keeps its resources if another construct in its stack creates them.
DEFAULT_ID = "Default"
