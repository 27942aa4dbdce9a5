"""The ports of the pipeline's job runs, done with EMR Serverless and DynamoDB."""
