"""Words for amounts on command lines: 4M bytes, 100G bits per second, lists of levels."""

from __future__ import annotations

import math
import re
from typing import Final

_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)")
_BYTES: Final = {"": 0, "k": 10, "m": 20, "g": 30}
_RATES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_bytes(text: str) -> int:
    """Return bytes: ``4M``, ``4MiB`` and ``4194304`` are the same, as in nccl-tests.

    Raises:
        ValueError: not such an amount, or less than a byte.
    """
    match = _NUMBER.fullmatch(text.strip())
    shift = None
    if match is not None:
        shift = _BYTES.get(re.sub("i?b$", "", match[2].lower()))
    if match is None or shift is None:
        raise ValueError(f"{text!r}: write bytes, such as 65536, 64K or 4MiB (powers of 1024)")
    value = float(match[1]) * (1 << shift)
    if value < 1 or value != int(value):
        raise ValueError(f"{text!r}: a whole number of bytes, from 1")
    return int(value)


def parse_rate(text: str) -> float:
    """Return bits per second: ``100G`` and ``100Gbit/s`` are 1e11.

    Raises:
        ValueError: not such a rate, or none.
    """
    match = _NUMBER.fullmatch(text.strip())
    factor = None
    if match is not None:
        factor = _RATES.get(re.sub("(b|bit|bps|b/s|bit/s)$", "", match[2].lower()))
    if match is None or factor is None or not float(match[1]):
        raise ValueError(f"{text!r}: write bits per second, such as 200M or 100G")
    return float(match[1]) * factor


def parse_levels(text: str) -> tuple[float, ...]:
    """Return levels of contention, ascending, each once.

    Raises:
        ValueError: a level that is none, or a clean network (0) is missing.
    """
    found = set()
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            raise ValueError(f"{word!r}: write levels from 0 to below 1: 0,0.5,0.8") from None
        if not (math.isfinite(level) and 0 <= level < 1):
            raise ValueError(f"{word.strip()}: a level is a share of the link, from 0 to below 1")
        found.add(level)
    if 0.0 not in found:
        raise ValueError(f"{text}: 0 is missing, the clean network by which gains are reckoned")
    return tuple(sorted(found))
