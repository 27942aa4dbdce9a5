"""The CDK stacks: what is deployed, and with which rights. What the functions do is in `sluice.functions`."""
