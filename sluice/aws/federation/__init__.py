"""Federation's adapters for SQS, Lambda and DynamoDB, and the publisher behind `sluice.publish`."""
