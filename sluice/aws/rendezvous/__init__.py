"""The ports of the rendezvous, done with DynamoDB and SQS, and its events' publisher."""
