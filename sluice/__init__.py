"""Sluice, a serverless switching fabric for Amazon SQS."""
