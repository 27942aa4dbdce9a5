"""DynamoDB and SQS adapters of the rendezvous functions, and the publishers of rendezvous events."""
