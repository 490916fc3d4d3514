"""Where the controller listens and keeps its store unless told otherwise."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from ringstep.fabric.topology import parse_target

DEFAULT_LISTEN: Final = "127.0.0.1:9560"
DEFAULT_STORE: Final = "sqlite:///ringstep.db"
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = timedelta(days=365)


def parse_listen(value: object) -> str:
    """Return ``HOST:PORT`` unchanged; port 0 takes a free one.

    Raises:
        ValueError: not HOST:PORT.
    """
    if isinstance(value, str) and value.endswith(":0"):
        parse_target(value[:-1] + "1")
        return value
    return parse_target(value)


def parse_duration(value: object) -> timedelta:
    """Return a duration from ``"90s"``, ``"10m"``, ``"2h"`` or ``"1d"``.

    Raises:
        ValueError: not a number with a unit, or more than a year.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f'{value!r} is not a duration; write a number with s, m, h or d, such as "90s", "10m"'
        )
    seconds = float(match.group(1)) * _SECONDS[match.group(2)]
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"{value!r} is longer than a year (365d)")
    return timedelta(seconds=seconds)
