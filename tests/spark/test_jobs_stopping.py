"""A job that is asked to stop, by signals that the test sends to itself."""

import os
import signal
import threading
from typing import Any

import pytest
from sluice_jobs import main as entry_point

pytest.importorskip("pyspark", reason="make test-spark has it")
from sluice_jobs.session import handle_stop_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop_and_its_handler_comes_back(number: signal.Signals) -> None:
    before, stopping = signal.getsignal(number), threading.Event()
    with handle_stop_signals(stopping):
        os.kill(os.getpid(), number)
        assert stopping.wait(60)
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_does_not_wait() -> None:
    def press_twice() -> None:
        stopping = threading.Event()
        with handle_stop_signals(stopping):
            os.kill(os.getpid(), signal.SIGINT)
            assert stopping.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt):
        press_twice()


def test_what_ctrl_c_ends_at_once_has_the_shells_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry_point, "run_job", interrupted)
    assert entry_point.main(["compact", "--tables", "/t", "--table-format", "parquet"]) == 130
    assert capsys.readouterr().err == "sluice_job: compact was interrupted\n"
