"""Adapters of the pipeline: job runs on EMR Serverless, the jobs' VPC endpoints, and desired states in DynamoDB."""
