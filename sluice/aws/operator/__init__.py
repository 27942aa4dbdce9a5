"""What only an operator's programs ask of AWS: no function's bundle holds any of it."""
