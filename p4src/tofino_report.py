"""Reduces what p4c's Tofino back end logs about a program to the numbers that are committed.

Read are, below the compiler's output folder, ``resources.json`` and ``phv.json`` of ``pipe/logs``,
and its ``power.json`` where there is one; the names in them are those of the schemas that p4c ships
(``backends/tofino/compiler_interfaces/schemas``). What is not as the schemas say is an error
that names file and key: a number that is merely missing must not read as 0.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESOURCES = Path("pipe") / "logs" / "resources.json"
PHV = Path("pipe") / "logs" / "phv.json"
POWER = Path("pipe") / "logs" / "power.json"


class ReportError(Exception):
    """The compiler's log is missing or not as its schema says; names file and key."""


def load(path: Path) -> Any:
    """Return a JSON file.

    Raises:
        ReportError: it is not there, or no JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError:
        raise ReportError(f"{path}: the compiler did not write it") from None
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}: {error}") from None


def at(document: Any, where: str, *keys: str) -> Any:
    """Return the value at a chain of keys.

    Raises:
        ReportError: a key is missing.
    """
    for key in keys:
        if not isinstance(document, dict) or key not in document:
            raise ReportError(f"{where}: no key {key!r} of {'.'.join(keys)}")
        document = document[key]
    return document


def used(amount: int, available: int) -> dict[str, int]:
    """Return an amount and what a pipe has of it."""
    return {"used": amount, "available": available}


def stateful(alus: list[Any], where: str) -> int:
    """Return how many of a stage's meter ALUs are stateful ones."""
    rows = {
        at(alu, where, "row")
        for alu in alus
        if any("stateful" in str(at(use, where, "used_for")) for use in at(alu, where, "usages"))
    }
    return len(rows)


def reduce(out: Path) -> dict[str, Any]:
    """Return stages, SRAM, TCAM, stateful ALUs, PHV bits and hash bits of a compiled program.

    Blocks of SRAM (1024 x 128 bits) and TCAM (512 x 44 bits); ``power`` in watts per gress, only
    where the compiler gives it.

    Raises:
        ReportError: see the class.
    """
    where = str(RESOURCES)
    mau = at(load(out / RESOURCES), where, "resources", "mau")
    total = at(mau, where, "nStages")
    stages = at(mau, where, "mau_stages")
    busy = [s for s in stages if at(s, where, "logical_tables", "ids")]
    if not busy:
        raise ReportError(f"{where}: no stage holds a table")

    def count(group: str, items: str, place: tuple[str, str], *sizes: str) -> dict[str, int]:
        # Two tables may share a unit, which is then listed twice.
        amount = sum(
            len({tuple(at(i, where, key) for key in place) for i in at(s, where, group, items)})
            for s in stages
        )
        available = total
        for size in sizes:
            available *= at(stages[0], where, group, size)
        return used(amount, available)

    salus = sum(stateful(at(s, where, "meter_alus", "meters"), where) for s in stages)
    report = {
        "stages": used(len(busy), total),
        "sram": count("rams", "srams", ("row", "column"), "nRows", "nColumns"),
        "tcam": count("tcams", "tcams", ("row", "column"), "nRows", "nColumns"),
        "salu": used(salus, total * at(stages[0], where, "meter_alus", "nAlus")),
        "phv": phv_bits(out),
        "hash_bits": count(
            "hash_bits", "bits", ("hash_function", "hash_bit"), "nBits", "nFunctions"
        ),
    }
    if (out / POWER).exists():
        report["power"] = {
            at(item, str(POWER), "gress"): at(item, str(POWER), "power")
            for item in at(load(out / POWER), str(POWER), "total_power")
        }
    return report


def phv_bits(out: Path) -> dict[str, int]:
    """Return the bits of the packet header vector that are taken, and those there are."""
    where = str(PHV)
    document = load(out / PHV)
    taken = {
        at(c, where, "phv_number"): at(c, where, "bit_width")
        for c in at(document, where, "containers")
    }
    available = sum(
        at(group, where, "bit_width") * at(group, where, "num_containers")
        for group in at(document, where, "resources")
        if at(group, where, "group_type") == "mau"
    )
    return used(sum(taken.values()), available)


def constant(constants: Path, name: str) -> int:
    """Return a number out of ``constants.p4``.

    Raises:
        ReportError: it is not there.
    """
    found = re.search(rf"\b{name} = (\d+);", constants.read_text())
    if found is None:
        raise ReportError(f"{constants}: no constant {name}")
    return int(found[1])
