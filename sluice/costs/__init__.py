"""What a site costs: prices, and what is used of what has one. No AWS here, and no synth: values only."""
