"""The embedded cloud that the deployed suites run on: it also refuses the expressions that DynamoDB refuses."""

import sys

from sluice.local import server
from tests.harsh import dynamodb_patches

if __name__ == "__main__":
    dynamodb_patches.patch()
    server.main(*sys.argv[1:])
