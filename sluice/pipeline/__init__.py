"""The pipeline's job runs: the definition of each job, and the reconciliation of its runs.

`jobs`, `catalogue`, `schedule` and `runs` decide and are pure; `reconciler` carries decisions out through its ports;
`settings` are the function's settings, `operations` its requests. The jobs themselves are in the Spark package.
"""
