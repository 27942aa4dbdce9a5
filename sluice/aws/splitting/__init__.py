"""The ports of splitting, done with DynamoDB, SQS and S3."""
