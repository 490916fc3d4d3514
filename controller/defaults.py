"""Where the controller listens and keeps its store unless told otherwise."""

from __future__ import annotations

from typing import Final

from ringstep.fabric.topology import parse_target

DEFAULT_LISTEN: Final = "127.0.0.1:9560"
DEFAULT_STORE: Final = "sqlite:///ringstep.db"


def parse_listen(value: object) -> str:
    """Return ``HOST:PORT`` unchanged; port 0 takes a free one.

    Raises:
        ValueError: not HOST:PORT.
    """
    if isinstance(value, str) and value.endswith(":0"):
        parse_target(value[:-1] + "1")
        return value
    return parse_target(value)
