"""The SQS client: credentials, signatures, HTTP. It depends neither on the log, the formats nor Spark."""
