"""Adapters for AWS: no other package uses boto3. They convert errors of AWS to errors of Sluice."""
