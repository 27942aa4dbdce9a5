"""The jobs that run on EMR Serverless and on local Spark: land, statistics, compact and replay.

`main` is the entry point. Modules that need Spark are imported only when a job runs, so that the arguments and the
table's log can be used without Spark.
"""
