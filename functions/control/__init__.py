"""The control function, which manages sessions of split queues."""
