"""Project files, locks and interpreters, shared by building, deploying and the embedded cloud."""
