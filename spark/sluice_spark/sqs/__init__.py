"""The SQS client: credentials, signatures, HTTP. Independent of the log, the message formats and Spark."""
