"""`sluice pipeline`: jobs, deployed or local."""
