"""What AWS takes for what is used. No AWS here, and no synth: values only."""
