"""The learned policy at run time: detector, test, selector, trials. Needs numpy only.

With weights that do not fit NCCL is left alone.
"""

from __future__ import annotations

from typing import Any


def make(options: Any) -> Any:
    """Return the coordinator's policy ``dynamic``; see :mod:`ringstep.hostlib.dynamic.plug`."""
    from ringstep.hostlib.dynamic.plug import make as really

    return really(options)
