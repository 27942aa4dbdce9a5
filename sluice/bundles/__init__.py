"""What is deployed, built: functions' code and layers, the archives of Spark's jobs, and the bill of all materials."""
