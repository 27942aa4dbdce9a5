"""The simulation's models answer random programs of calls as ministack does, once it is patched as AWS answers.

So neither is wrong alone. Where they differed, AWS's documentation said which of them to mend.
"""

import pytest
from hypothesis import given

from tests.harsh import dynamodb_programs, sqs_programs
from tests.harsh.two_clouds import two_clouds

pytestmark = pytest.mark.usefixtures("patched")


@given(sqs_programs.programs())
def test_sqs_answers_a_program_as_its_model(program: sqs_programs.Program) -> None:
    with two_clouds("sqs") as clouds:
        sqs_programs.play(program, clouds)


@given(dynamodb_programs.programs())
def test_dynamodb_answers_a_program_as_its_model(program: dynamodb_programs.Program) -> None:
    with two_clouds("dynamodb") as clouds:
        dynamodb_programs.play(program, clouds)
