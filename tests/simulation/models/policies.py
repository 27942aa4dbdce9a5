"""Queues' resource policies, as far as they let other accounts in. What an account may do at home its roles say.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-basic-examples-of-sqs-policies.html
"""

import json
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=1_000)
def lets_in(policy: str, account: str, action: str) -> bool:
    """Whether the policy allows the account what it asks for."""
    statements = json.loads(policy)["Statement"] if policy else []
    return any(
        statement["Effect"] == "Allow"
        and f"arn:aws:iam::{account}:root" in statement["Principal"]["AWS"]
        and f"sqs:{action}" in statement["Action"]
        for statement in statements
    )


def policy_for(accounts: Sequence[str], *actions: str) -> str:
    """Spell the policy that lets accounts do this to a queue."""
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    named = [f"sqs:{action}" for action in actions]
    return json.dumps({"Statement": [{"Effect": "Allow", "Principal": {"AWS": principals}, "Action": named}]})
