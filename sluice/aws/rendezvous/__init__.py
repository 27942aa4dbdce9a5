"""DynamoDB and SQS adapters of the rendezvous, and the publishers of its events."""
