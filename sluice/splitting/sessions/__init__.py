"""Sessions and their queues: what is known of them, what happens, what follows, what is to be done. Pure."""
