"""The sink: converts rows to messages, packs messages into batches, and sends these. Independent of the source."""
