"""Builds deployable files: functions' code and layers, the archives of Spark jobs, and the bill of materials."""
