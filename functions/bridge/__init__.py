"""The bridge function, which forwards messages over routes to peer sites."""
