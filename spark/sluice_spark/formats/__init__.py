"""What is in a message's body, or in the object that it names: envelopes, typed values, files of S3.

Of the log and of Spark nothing is known here: batches of Arrow come in and go out.
"""
