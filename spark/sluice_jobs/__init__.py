"""The jobs that run on EMR Serverless and on local Spark: from queues to tables, from tables to statistics and back.

`main` is the one entry point. What needs Spark is imported where a job runs, so that arguments, the table's log and the
statistics' format are usable without.
"""
