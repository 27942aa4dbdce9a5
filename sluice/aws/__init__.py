"""Adapters for AWS. Only this package uses boto3. The adapters convert errors of AWS to errors of Sluice."""
