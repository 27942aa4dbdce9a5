"""Links and bridges: their declarations, their states, and the actions that are due. Pure."""
