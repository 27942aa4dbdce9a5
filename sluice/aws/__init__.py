"""Adapters for AWS, the only package that uses boto3. They convert errors of AWS to errors of Sluice."""
