"""The adapters that start job runs on EMR Serverless and keep their desired states in DynamoDB."""
