"""`sluice pipeline`: controls Spark jobs on a deployed site or as local processes."""
