"""What of AWS's answers passes, and what is an answer."""

import pytest

from sluice.errors import CallFailed

NO_QUEUE = "SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. SQS Error Message: The specified queue"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("QueueDeletedRecently", "You must wait 60 seconds"),
        ("AWS.SimpleQueueService.QueueDeletedRecently", "You must wait 60 seconds"),
        ("ResourceInUseException", "Cannot update the event source mapping because it is in use."),
        ("ResourceConflictException", "An event source mapping with SQS arn already exists."),
        ("RequestThrottled", ""),
        ("TooManyRequestsException", "Rate exceeded"),
        ("InternalError", ""),
        ("ReadTimeoutError", ""),
        ("InvalidParameterValueException", NO_QUEUE),
        ("InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."),
        ("InvalidParameterValueException", "The provided execution role does not have permissions to call X on SQS"),
    ],
)
def test_what_passes_is_told_by_its_code_and_where_the_code_says_nothing_by_its_words(code: str, text: str) -> None:
    assert CallFailed("Call", code, text).is_transient


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AccessDenied", "not authorized to perform: sqs:CreateQueue"),
        ("InvalidParameterValueException", "Batch size must be at most 10"),
        ("InvalidParameterValue", NO_QUEUE),
        ("OverLimit", "The policy has too many statements"),
        ("ResourceNotFoundException", ""),
    ],
)
def test_an_answer_stays_what_it_is(code: str, text: str) -> None:
    assert not CallFailed("Call", code, text).is_transient
