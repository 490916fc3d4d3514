"""What the tests of the engine's environment share: may this machine have hosts and an engine."""

from __future__ import annotations

import pytest

from ringstep.hostlib.native.build import missing_tools
from ringstep.hostlib.nethosts import missing


@pytest.fixture(scope="session")
def links() -> None:
    if (why := missing() or missing_tools("C++")) is not None:
        pytest.skip(why)
