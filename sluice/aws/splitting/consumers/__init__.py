"""What says which queue a consumer reads, asked for and changed at AWS."""
