"""Federation's adapters for SQS, Lambda and DynamoDB. The publisher is public as `sluice.publish`."""
