"""Everything that talks to AWS: the only place with boto3. Foreign errors become ours here, once."""
