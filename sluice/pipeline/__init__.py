"""The pipeline's job runs: what each job is, and what is to be done about the runs that are there.

`jobs` and `runs` decide and are pure; `settings` reads what a function is told; `operations` is what may be asked.
What a job does with messages is in the Spark package.
"""
