"""`sluice rendezvous`: show the status, manage credentials, run a client, run a proxy."""
