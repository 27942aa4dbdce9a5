"""The pipeline's job runs: what each job is, and what is to be done about the runs that are there.

`jobs`, `catalogue`, `schedule` and `runs` decide and are pure; `reconciler` does what they say, by its ports;
`settings` reads what a function is told, `operations` is what may be asked.
What a job does with messages is in the Spark package.
"""
