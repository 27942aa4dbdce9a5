"""The embedded cloud as a process: found, stopped, and back with its state where that is asked for."""

from pathlib import Path

import pytest

from sluice.aws.sessions import of_environment
from sluice.local.cloud import CloudFailed, find, start
from sluice.local.sites import DEFAULT_SITE


def queue_names(cloud) -> list[str]:
    sqs = of_environment(cloud.environment(DEFAULT_SITE)).client("sqs")
    return [url.rsplit("/", 1)[1] for url in sqs.list_queues().get("QueueUrls", [])]


def test_a_cloud_is_found_while_it_runs_and_there_is_one_a_folder(tmp_path: Path) -> None:
    cloud = start(tmp_path / "cloud")
    try:
        assert find(tmp_path / "cloud") == cloud
        with pytest.raises(CloudFailed, match="runs already"):
            start(tmp_path / "cloud")
    finally:
        cloud.stop()
    assert find(tmp_path / "cloud") is None


@pytest.mark.parametrize("keep_state", [True, False])
def test_state_comes_back_where_it_is_kept(tmp_path: Path, keep_state: bool) -> None:
    cloud = start(tmp_path / "cloud", keep_state=keep_state)
    of_environment(cloud.environment(DEFAULT_SITE)).client("sqs").create_queue(QueueName="kept")
    cloud.with_site(DEFAULT_SITE).stop()
    again = start(tmp_path / "cloud", keep_state=keep_state)
    try:
        assert queue_names(again) == (["kept"] if keep_state else [])
        assert again.sites == ((DEFAULT_SITE,) if keep_state else ())
    finally:
        again.stop()
