"""The pipeline's job runs: definitions of jobs, and reconciliation of runs with the jobs that should run.

Modules `jobs`, `catalogue`, `schedule` and `runs` decide, and are pure. `reconciler` executes decisions through its
ports. `settings` has the function's settings, `operations` its requests. The jobs' programs are in the Spark package.
"""
