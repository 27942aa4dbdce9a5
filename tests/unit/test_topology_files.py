"""`sluice topology` from files to sites that live in memory: what is planned, done, done again, and killed amid it."""

from pathlib import Path

import pytest
import yaml

from sluice.federation.operations import Operation
from tests.unit.test_cli_federation import Sites

