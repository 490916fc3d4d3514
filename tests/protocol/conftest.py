"""Makes the helpers beside these tests and the reader of the golden vectors importable."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# No test here judges by the clock, so neither may hypothesis: the machine may be busy.
settings.register_profile(
    "ringstep", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ringstep")

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "vectors"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
