"""Sessions and their temporary queues: state, events, rules and due actions. Pure."""
