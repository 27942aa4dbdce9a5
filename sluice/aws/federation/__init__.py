"""The ports of federation, done with SQS and Lambda, and the publisher that `sluice.publish` is."""
