from __future__ import annotations

import contextlib

import pytest

from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.generate import generate

with contextlib.suppress(ImportError):  # the tests skip without it
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def traces() -> Traces:
    return generate(21, 60, 32, reconfigured=0.5)
