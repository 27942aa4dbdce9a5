"""Calls to SQS: who we are, signatures, HTTP, the client. Of logs, formats and Spark nothing is known here."""
