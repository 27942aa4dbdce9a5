"""DynamoDB, SQS and S3 adapters of splitting."""
