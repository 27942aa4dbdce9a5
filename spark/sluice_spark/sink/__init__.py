"""The sink: converts rows to messages, packs them into batches, and sends them. It doesn't depend on the source."""
