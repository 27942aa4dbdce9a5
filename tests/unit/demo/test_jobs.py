"""The demo's Spark jobs wait until they are let go, and end with the demo: another program stands in for Spark."""

import os
from pathlib import Path

import pytest

from sluice.demo.spark_jobs import JobFailed, held

SAYS_WHAT_IT_IS_TOLD = "read -r told && echo $told"


def python(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_job_waits_until_it_is_let_go_with_its_arguments(tmp_path):
    with held(python(tmp_path, SAYS_WHAT_IT_IS_TOLD), {}, tmp_path) as jobs:
        assert all(job.runs for job in (jobs.main, jobs.session, jobs.statistics))
        jobs.statistics.let_go(["statistics", "--output", "a b"])
        jobs.statistics.wait()
        assert all(job.runs for job in jobs.landing)
    assert (tmp_path / "statistics.log").read_text() == '["statistics", "--output", "a b"]\n'
    assert (tmp_path / "main.log").read_text() == ""


def test_a_job_that_fails_says_why(tmp_path):
    with held(python(tmp_path, f"{SAYS_WHAT_IT_IS_TOLD}; exit 3"), {}, tmp_path) as jobs:
        jobs.main.let_go(["land"])
        with pytest.raises(JobFailed, match=r'main: exit code 3\n\["land"\]'):
            jobs.main.wait()


def test_of_a_job_that_failed_before_it_was_let_go_waiting_tells(tmp_path):
    with held(python(tmp_path, "echo no Java; exit 1"), {}, tmp_path) as jobs:
        jobs.main.process.wait()
        jobs.main.let_go(["land"])
        with pytest.raises(JobFailed, match="main: exit code 1\nno Java"):
            jobs.main.wait()


def test_what_a_job_has_started_ends_with_the_demo(tmp_path):
    started = tmp_path / "started"
    os.mkfifo(started)
    with held(python(tmp_path, f"exec 3> {started}; sleep 600 & wait"), {}, tmp_path):
        written = started.open()  # once a job has it open, and so what that starts
    with written:
        assert written.read() == ""  # which ends when nobody has it open to write
