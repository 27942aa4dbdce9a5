"""Parameters of Systems Manager: texts with versions, of which the last hundred are kept."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.models.errors import ServiceError

if TYPE_CHECKING:
    from tests.simulation.kernel.world import World


@dataclass(slots=True)
class Parameter:
    """A parameter: its values by version, from 1, and when the last was written."""

    values: list[str]
    at: float


@dataclass(slots=True)
class Parameters:
    """All of them, by name."""

    world: "World"
    by_name: dict[str, Parameter] = field(default_factory=dict)

    def make(self, name: str, value: str) -> None:
        """Have one that is there from the beginning."""
        self.by_name[name] = Parameter([value], self.world.now - 3_600)

    def write(self, name: str, value: str) -> int:
        """Give one another value; the version that it becomes."""
        found = self.by_name[name]
        found.values.append(value)
        found.at = self.world.now
        return len(found.values)

    # Its methods are the operations, as botocore names them

    def get_parameter(self, *, Name: str) -> dict[str, Any]:
        name, _, version = Name.partition(":")
        found = self.by_name.get(name)
        if found is None:
            raise ServiceError("ParameterNotFound")
        number = int(version) if version else len(found.values)
        shown = {
            "Name": name,
            "Type": "String",
            "Value": found.values[number - 1],
            "Version": number,
            "LastModifiedDate": datetime.fromtimestamp(found.at, UTC),
        }
        return {"Parameter": shown}

    def put_parameter(self, *, Name: str, Value: str, Overwrite: bool, Type: str) -> dict[str, Any]:
        assert Overwrite
        assert Type == "String"
        return {"Version": self.write(Name, Value)}

    def describe_parameters(self, *, ParameterFilters: list[dict[str, Any]]) -> dict[str, Any]:
        [names] = [
            parameter_filter["Values"] for parameter_filter in ParameterFilters if parameter_filter["Key"] == "Name"
        ]
        return {"Parameters": [{"Name": name, "Type": "String"} for name in names if name in self.by_name]}
