"""The policy ``fixed``: a table that somebody wrote, read strictly.

A CSV file with the header ``collective,bytes,algorithm,protocol,channels,chunk``; the last two
columns may be left out. Lines that begin with ``#`` are comments::

    collective,bytes,algorithm,protocol,channels,chunk
    allreduce,..64KiB,tree,ll,,
    allreduce,64KiB..1MiB,ring,ll128,4,
    allreduce,1MiB..,ring,simple,8,512KiB

``bytes`` is an interval of sizes, the lower end within it and the upper end not; an end left out is
open. Decisions are kept by powers of two, so ends are 0 or powers of two. Intervals of a collective
do not overlap; sizes that none covers are left to NCCL. An empty cell or -1 keeps NCCL's channels
or chunk.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.policy import CallKey, Options, PolicyError, Sample
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

__all__ = ["Fixed", "Rule", "TableError", "format_table", "make", "read_table"]

COLUMNS: Final = ("collective", "bytes", "algorithm", "protocol", "channels", "chunk")
_NEEDED: Final = COLUMNS[:4]
_UNITS: Final = {
    "": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"(\d{1,20})\s*([A-Za-z]*)")
_END: Final = 1 << lay.SIZE_CLASSES
_CHUNK_MIN, _CHUNK_MAX, _CHUNK_GRAIN = 16 << 10, 64 << 20, 4 << 10
_FILE_MAX: Final = 1 << 20
_Word = TypeVar("_Word", Collective, Algo, Proto)


class TableError(PolicyError):
    """A table file with a mistake; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: what to do for an interval of size classes."""

    collective: Collective
    classes: range
    decision: Decision
    line: int


def _words(kind: type[_Word]) -> dict[str, _Word]:
    return {member.name.lower(): member for member in kind}


_COLLECTIVES: Final = {name.replace("_", ""): c for name, c in _words(Collective).items()}
_ALGORITHMS: Final = _words(Algo)
_PROTOCOLS: Final = _words(Proto)


def _word(text: str, known: dict[str, _Word], what: str) -> _Word:
    bare = re.sub("[-_ ]", "", text.lower())
    for name, member in known.items():
        if name.replace("_", "") == bare:
            return member
    raise ValueError(f"{what} {text!r}: choose {', '.join(known)}")


def amount(text: str, what: str) -> int:
    """Return bytes: ``65536`` or ``64KiB``.

    Raises:
        ValueError: not such text; ``what`` says of which option or column.
    """
    match = _AMOUNT.fullmatch(text)
    units = ", ".join(u for u in _UNITS if u)
    if match is None:
        raise ValueError(f"{what} {text!r}: write bytes, or a number with {units}")
    number, unit = match.groups()
    if unit not in _UNITS:
        near = next((u for u in _UNITS if u and u[0].lower() == unit[0].lower()), "KiB")
        raise ValueError(f"{what} {text!r}: no unit {unit}; write {number}{near} (of {units})")
    return int(number) << _UNITS[unit]


def in_words(n_bytes: int) -> str:
    """Return bytes in the largest unit that leaves a whole number: 64KiB."""
    for unit, shift in reversed(_UNITS.items()):
        if unit and n_bytes and n_bytes % (1 << shift) == 0:
            return f"{n_bytes >> shift}{unit if shift else ''}"
    return "0"


def _power_of_two(value: int, text: str) -> int:
    if value & (value - 1) == 0 and value <= _END:
        return value
    if value > _END:
        raise ValueError(f"bytes {text!r}: sizes end at {in_words(_END)}; leave the end open")
    below = 1 << (value.bit_length() - 1)
    raise ValueError(
        f"bytes {text!r}: decisions are kept by powers of two; nearest are {in_words(below)} "
        f"and {in_words(2 * below)}"
    )


def _classes(text: str) -> range:
    low_text, dots, high_text = text.partition("..")
    if not dots:
        raise ValueError(f"bytes {text!r}: write an interval, 64KiB..1MiB, ..64KiB or 1MiB..")
    low_text, high_text = low_text.strip(), high_text.strip()
    low = _power_of_two(amount(low_text, "bytes"), low_text) if low_text else 0
    high = _power_of_two(amount(high_text, "bytes"), high_text) if high_text else _END
    if high < 2:
        raise ValueError(f"bytes {text!r}: the smallest upper end is 2, for sizes of 0 and 1")
    first, last = max(low.bit_length() - 1, 0), high.bit_length() - 1
    if first >= last:
        raise ValueError(f"bytes {text!r}: no size is in it; the lower end comes first")
    return range(first, last)


def _channels(text: str) -> int:
    if text in ("", "-1"):
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ValueError(f"channels {text!r}: 1 to 64, or -1 or nothing to keep NCCL's")
    return int(text)


def _chunk(text: str) -> int:
    if text in ("", "-1"):
        return 0
    chunk = amount(text, "chunk")
    clamped = min(max(chunk - chunk % _CHUNK_GRAIN, _CHUNK_MIN), _CHUNK_MAX)
    if chunk != clamped:
        raise ValueError(
            f"chunk {text!r}: {in_words(_CHUNK_MIN)} to {in_words(_CHUNK_MAX)} in steps of "
            f"{in_words(_CHUNK_GRAIN)}; nearest is {in_words(clamped)}"
        )
    return chunk


def _rule(cells: dict[str, str], line: int) -> Rule:
    collective = _word(cells["collective"], _COLLECTIVES, "collective")
    classes = _classes(cells["bytes"])
    algo = _word(cells["algorithm"], _ALGORITHMS, "algorithm")
    proto = _word(cells["protocol"], _PROTOCOLS, "protocol")
    if algo is Algo.TREE and collective is not Collective.ALL_REDUCE:
        raise ValueError("algorithm 'tree': NCCL has it for allreduce only; write ring")
    decision = Decision(
        algo, proto, _channels(cells.get("channels", "")), _chunk(cells.get("chunk", "")),
        state=EntryState.FIXED,
    )  # fmt: skip
    return Rule(collective, classes, decision, line)


def read_table(path: Path) -> list[Rule]:
    """Return the rules of a table file.

    Raises:
        TableError: it cannot be read, or has a mistake.
    """
    try:
        if path.stat().st_size > _FILE_MAX:
            raise TableError(f"{path}: more than {_FILE_MAX} bytes; no table is that long")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from error
    rules: list[Rule] = []
    header: list[str] | None = None
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip() or content.lstrip().startswith("#"):
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([content], strict=True))]
            if header is None:
                header = _header(cells)
            else:
                rules.append(_rule(_row(header, cells), line))
                _no_overlap(rules)
        except (ValueError, csv.Error) as error:
            raise TableError(f"{path}:{line}: {error}") from error
    if header is None:
        raise TableError(f"{path}: empty; the first line is {','.join(COLUMNS)}")
    return rules


def _header(cells: list[str]) -> list[str]:
    right = ",".join(COLUMNS)
    for cell in cells:
        if cell not in COLUMNS:
            raise ValueError(f"column {cell!r}: the first line is {right}")
        if cells.count(cell) > 1:
            raise ValueError(f"column {cell!r} is there twice: the first line is {right}")
    missing = [name for name in _NEEDED if name not in cells]
    if missing:
        raise ValueError(f"column {missing[0]!r} is missing: the first line is {right}")
    return cells


def _row(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) > len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} columns ({','.join(header)})")
    row = dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
    for name in _NEEDED:
        if row[name] in ("", "-1"):
            raise ValueError(
                f"{name} is missing; to leave a size to NCCL, leave the whole line out"
            )
    return row


def _no_overlap(rules: list[Rule]) -> None:
    new = rules[-1]
    for old in rules[:-1]:
        if old.collective is not new.collective:
            continue
        first = max(old.classes.start, new.classes.start)
        if first < min(old.classes.stop, new.classes.stop):
            name = new.collective.name.lower().replace("_", "")
            low = in_words(1 << first) if first else "0"
            raise ValueError(f"{name} of {low} is decided in line {old.line} already")


def format_table(decisions: dict[tuple[Collective, int], Decision]) -> str:
    """Return decisions as the text of a table file."""
    lines = [",".join(COLUMNS)]
    for collective in Collective:
        mine = sorted((k, d) for (c, k), d in decisions.items() if c is collective)
        runs: list[tuple[int, int, tuple[Algo, Proto, int, int]]] = []
        for which, d in mine:
            setting = (d.algo, d.proto, d.n_channels, d.chunk_bytes)
            if runs and runs[-1][1] == which and runs[-1][2] == setting:
                runs[-1] = (runs[-1][0], which + 1, setting)
            else:
                runs.append((which, which + 1, setting))
        for first, end, (algo, proto, channels, chunk) in runs:
            low = in_words(1 << first) if first else ""
            high = in_words(1 << end) if end < lay.SIZE_CLASSES else ""
            lines.append(
                f"{collective.name.lower().replace('_', '')},{low}..{high},{algo.name.lower()},"
                f"{proto.name.lower()},{channels or ''},{in_words(chunk) if chunk else ''}"
            )
    return "\n".join(lines) + "\n"


def by_place(rules: list[Rule]) -> dict[tuple[Collective, int], Decision]:
    """Return what rules decide by collective and size class."""
    return {(r.collective, which): r.decision for r in rules for which in r.classes}


class Fixed:
    """Answers from a table."""

    name = "fixed"
    version = 1
    static = True

    def __init__(self, rules: list[Rule]) -> None:
        self._decisions = by_place(rules)

    def observe(self, sample: Sample) -> None:
        """Nothing to learn."""

    def process(self, key: CallKey) -> Decision | None:
        """Return what the table says for the key."""
        return self._decisions.get((key.collective, key.size_class))


def make(options: Options) -> Fixed:
    """Return the policy for ``fixed:FILE``.

    Raises:
        PolicyError: no file was named, or it has a mistake.
    """
    if not options.argument:
        raise PolicyError("policy fixed needs a table: fixed:FILE")
    return Fixed(read_table(options.folder / options.argument))
