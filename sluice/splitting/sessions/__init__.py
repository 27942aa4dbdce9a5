"""Sessions and their queues: state, events, rules and due actions. Pure."""
