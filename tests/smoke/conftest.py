"""Two throw-away stages in a real account, which costs up to a dollar: only `make smoke` asks for them."""

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.prices import price_list
from sluice.cli.terminal import print_note
from sluice.errors import SluiceError
from tests.smoke.stages import SmokeSite, Stages, estimate_usd

ASKED_FOR = "SLUICE_SMOKE"  # `make smoke` sets it to 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `make smoke`, in its ARGS."""
    group = parser.getgroup("smoke")
    group.addoption("--region", help="Another region than the configured one.")
    group.addoption("--profile", help="Another profile of the AWS configuration.")
    group.addoption("--local", action="store_true", help="On an embedded cloud of its own, in place of AWS.")
    group.addoption("--budget-usd", type=float, default=1.0, help="What it may cost.")
    group.addoption("--keep", action="store_true", help="Don't destroy, to look at it. It costs on.")


@pytest.fixture(scope="session")
def budget_usd(pytestconfig: pytest.Config) -> float:
    return float(pytestconfig.getoption("budget_usd"))


@pytest.fixture(scope="session")
def stages(pytestconfig: pytest.Config) -> Iterator[Stages]:
    """Both, deployed. Whatever ends the session they are destroyed once deploying has begun, unless they are kept."""
    if os.environ.get(ASKED_FOR) != "1":
        pytest.skip("deploys two stages to a real account, for up to a dollar: run `make smoke`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a job of CI ends it so
    made = check(pytestconfig)
    try:
        print_note(f"deploys {made.here.stage} and {made.there.stage} …")
        try:
            made.deploy()
        except SluiceError as error:
            # Every test would fail by it, and say so at length.
            pytest.exit(f"not deployed: {error}", returncode=1)
        yield made
    finally:
        try:
            if pytestconfig.getoption("keep"):
                print_note("\n".join(["kept; it goes by", *(f"  {command}" for command in made.removal())]))
            else:
                print_note("destroys …")
                print_note(f"destroyed: {made.destroy()}")
        finally:
            if made.cloud:
                made.cloud.stop()


def check(pytestconfig: pytest.Config) -> Stages:
    """Name the stages, after a look at the price and the account. Ends the session where they can't be made."""
    cost_usd, may_usd = estimate_usd(), pytestconfig.getoption("budget_usd")
    print_note(f"up to ${cost_usd:.2f}, with prices of {price_list().on}; it may cost ${may_usd:g}")
    if cost_usd > may_usd:
        pytest.exit(f"it may cost ${cost_usd:.2f}, more than --budget-usd {may_usd:g}", returncode=2)
    local, region, profile, keep = (pytestconfig.getoption(name) for name in ("local", "region", "profile", "keep"))
    if local and (region or profile or keep):
        pytest.exit("--local has a region and an account of its own, and keeps nothing", returncode=2)
    made = None
    try:
        made = Stages.on_cloud() if local else Stages.on_aws(region=region, profile=profile)
        print_note(f"ready: {made.check_account()}")
    except SluiceError as error:
        if made and made.cloud:
            made.cloud.stop()
        pytest.exit(str(error), returncode=2)
    return made


@pytest.fixture(scope="session")
def here(stages: Stages) -> SmokeSite:
    """The one with the pipeline."""
    return stages.here


@pytest.fixture(scope="session")
def there(stages: Stages) -> SmokeSite:
    return stages.there
