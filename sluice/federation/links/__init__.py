"""Links and bridges: what they are, how they live, what is due. Pure."""
