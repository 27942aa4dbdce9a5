"""Names shared by what writes and what reads: of tables, and of what messages of exchanges carry."""

MESSAGES, QUARANTINE = "messages", "quarantine"

METADATA_ATTRIBUTE = "x-qpid"
EXCHANGE_ATTRIBUTE, KEY_ATTRIBUTE = "exchange", "routing-key"  # of a producer that knows nothing of x-qpid
