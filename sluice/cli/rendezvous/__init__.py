"""`sluice rendezvous`: look, manage credentials, be a client, be a proxy."""
