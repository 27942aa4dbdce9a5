"""Events of the rendezvous and what is counted of them. Pure."""
