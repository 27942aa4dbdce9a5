"""The sink: converts rows to messages, packs messages into batches, and sends batches. Independent of the source."""
