"""The template of a release: deployed by CloudFormation alone, from a bucket that a parameter names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sluice.parameters import parameter_schemas
from stacks.template import TEMPLATE, main, write
from tests.stacks.test_synth import digests
from tests.templates.test_lint import IGNORED, found_in


@pytest.fixture(scope="module")
def release(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    main(folder)  # a finding of cdk-nag fails it
    return folder


@pytest.fixture(scope="module")
def template(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / TEMPLATE).read_text())
    return found


@pytest.mark.slow
def test_it_is_as_the_schemas_of_its_resources_say(template: dict[str, Any]) -> None:
    assert [(rule, said) for rule, said in found_in(json.dumps(template)) if rule not in IGNORED] == []


def test_it_needs_no_bootstrap(template: dict[str, Any]) -> None:
    text = json.dumps(template)
    assert set(template["Parameters"]) == {"AssetsBucket", "AlarmsTopicArn", "LogRetentionDays", "LogLevel"}
    assert "cdk-" not in text
    assert "bootstrap" not in text.lower()
    assert "Fn::GetStackOutput" not in text
    assert "Fn::ImportValue" not in text


def test_every_archive_that_it_names_lies_beside_it(release: Path, template: dict[str, Any]) -> None:
    named = set(re.findall(r"[0-9a-f]{64}\.[a-z]+", json.dumps(template)))
    there = {path.name for path in release.iterdir()} - {TEMPLATE, "README.md"}
    assert named == there
    functions = [resource for resource in template["Resources"].values() if resource["Type"] == "AWS::Lambda::Function"]
    buckets = [function["Properties"]["Code"]["S3Bucket"] for function in functions]
    assert buckets == [{"Fn::Sub": "${AssetsBucket}"}] * len(functions)
    assert len(functions) == 11


def test_what_its_parameters_say_reaches_functions_and_logs(template: dict[str, Any]) -> None:
    resources = template["Resources"].values()
    variables = [
        resource["Properties"]["Environment"]["Variables"]
        for resource in resources
        if resource["Type"] == "AWS::Lambda::Function"
    ]
    assert [variable["POWERTOOLS_LOG_LEVEL"] for variable in variables] == [{"Ref": "LogLevel"}] * len(variables)
    groups = [
        resource["Properties"]["RetentionInDays"] for resource in resources if resource["Type"] == "AWS::Logs::LogGroup"
    ]
    assert groups == [{"Ref": "LogRetentionDays"}] * 12


def test_its_instructions_name_what_was_not_looked_at(release: Path) -> None:
    said = (release / "README.md").read_text()
    assert "The template was made without looking at an account" in said
    named = {"proxy_max_concurrency", "client_max_concurrency", "account_concurrency", "release_label"}
    assert named <= {name.rpartition(".")[2] for name in parameter_schemas()}
    assert all(name in said for name in named)


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes(release: Path, tmp_path: Path) -> None:
    write(tmp_path)
    assert digests(tmp_path) == digests(release)
