"""The table of ``--policy fixed:FILE``, checked before anything starts.

The coordinator writes it as the static table as well. Where the launcher knows that all ranks have
it, it says so by the table's digest, and it holds from a communicator's first collective on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringstep.cli.launcher.say import LaunchError

if TYPE_CHECKING:
    from ringstep.hostlib.shm import DecisionTable

# numpy, which tables are made of, starts threads and takes time: only where there is a table.


def read_table(path: Path) -> DecisionTable:
    """Return the table of a file.

    Raises:
        LaunchError: it cannot be read, or has a mistake; the text names file and line.
    """
    from ringstep.hostlib.coordinator.fixed import read_table as read_rules
    from ringstep.hostlib.coordinator.policy import PolicyError
    from ringstep.hostlib.shm import DecisionTable

    try:
        rules = read_rules(path)
    except PolicyError as error:
        raise LaunchError(f"--policy: {error}") from None
    table = DecisionTable()
    for rule in rules:
        table.set(rule.collective, rule.classes, rule.decision)
    return table


def digest(path: Path) -> int:
    """Return what RINGSTEP_STATIC_DIGEST is for the table of a file.

    Raises:
        LaunchError: as :func:`read_table`.
    """
    return read_table(path).digest(0)
