"""The sections of the stacks' parameters, a module each: what there is, how it is read, what fits together."""
