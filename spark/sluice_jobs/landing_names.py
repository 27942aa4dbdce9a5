"""Names of tables, shared by what writes them and what reads them."""

MESSAGES, QUARANTINE = "messages", "quarantine"
