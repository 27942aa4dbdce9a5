"""A harsh cloud's stacks: what one exports is held while another imports it."""

import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.stacks import Template, delete, deploy, reasons

QUEUE = {"Type": "AWS::SQS::Queue"}
EXPORTING = Template(resources={"Queue": QUEUE}, exports={"held": "first", "free": "first"})
IMPORTING = Template(
    resources={"Queue": QUEUE | {"Properties": {"Tags": [{"Key": "k", "Value": {"Fn::ImportValue": "held"}}]}}}
)


@pytest.fixture(scope="module", autouse=True)
def both(account: Connection) -> None:
    assert deploy(account, "exporting", EXPORTING) == "CREATE_COMPLETE"
    assert deploy(account, "importing", IMPORTING) == "CREATE_COMPLETE"


def exports(account: Connection) -> dict[str, str]:
    listed = account.client("cloudformation").list_exports()["Exports"]
    return {export["Name"]: export["Value"] for export in listed if export["Name"] in {"held", "free", "taken"}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"free": "first"}, "cannot be deleted as it is in use by importing"),
     ({"held": "second", "free": "first"}, "cannot be updated as it is in use by importing")],
    ids=["removed", "changed"],
)  # fmt: skip
def test_an_export_in_use_cannot_be_removed_or_changed(account: Connection, changed: dict[str, str], said: str) -> None:
    assert deploy(account, "exporting", Template(resources={"Queue": QUEUE}, exports=changed)) == (
        "UPDATE_ROLLBACK_COMPLETE"
    )
    assert any(said in reason for reason in reasons(account, "exporting"))
    assert exports(account)["held"] == "first"


def test_a_stack_whose_export_is_in_use_cannot_be_deleted(account: Connection) -> None:
    with pytest.raises(ClientError, match="held"):
        delete(account, "exporting")


def test_a_name_is_exported_by_one_stack(account: Connection) -> None:
    second = Template(resources={"Queue": QUEUE}, exports={"held": "second"})
    assert deploy(account, "second", second) == "ROLLBACK_COMPLETE"
    assert exports(account)["held"] == "first"


def test_an_export_that_nobody_imports_can_be_changed_and_removed(account: Connection) -> None:
    changed = Template(resources={"Queue": QUEUE}, exports={"held": "first", "free": "second"})
    assert deploy(account, "exporting", changed) == "UPDATE_COMPLETE"
    assert exports(account) == {"held": "first", "free": "second"}
    removed = Template(resources={"Queue": QUEUE}, exports={"held": "first"})
    assert deploy(account, "exporting", removed) == "UPDATE_COMPLETE"
    assert exports(account) == {"held": "first"}
