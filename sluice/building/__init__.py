"""What building, deploying and the embedded cloud share: the project's files, its locks, and interpreters."""
