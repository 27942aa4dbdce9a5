"""`sluice rendezvous`: shows the status, manages credentials, runs clients and runs proxies."""
