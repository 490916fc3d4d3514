"""Reads and writes the marker's golden vectors (``tests/vectors/marker/*.txt``).

Standard library only, and no rule of the marker in here: the format is described in README.md
beside this file, and an implementation in another language needs nothing more than that page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FORMAT: Final = 1
MARKER_DIR: Final = Path(__file__).resolve().parent / "marker"

INPUT_COLUMNS: Final = (
    "now_us", "job", "port", "opcode", "sport", "step", "psn", "ecn", "qdepth", "red", "r",
)  # fmt: skip
EXPECTED_COLUMNS: Final = (
    "mark", "ecn_out", "progress", "base", "block", "step_min", "psn_rec", "alpha", "cnt_total",
    "cnt_op", "win_start", "generation",
)  # fmt: skip
COLUMNS: Final = INPUT_COLUMNS + EXPECTED_COLUMNS
STATE_COLUMNS: Final = EXPECTED_COLUMNS[-7:]

JOB_KEYS: Final = (
    "scope", "tag", "job_bits", "step_bits", "mode", "packets_per_step", "k", "tau_num",
    "tau_den", "t_win", "n_sample", "n_warmup", "alpha_max", "q_gate", "enabled", "generation",
)  # fmt: skip


class VectorError(ValueError):
    """A vector file is broken; the text names file, line and what was expected."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A line ``key = value``: it holds for every packet below it."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Packet:
    """One row: what goes in, and what has to be true after it. None stands for ``-``."""

    line: int
    now_us: int
    job: int
    port: int
    opcode: str
    sport: int
    step: int | None
    psn: int
    ecn: int
    qdepth: int
    red: int
    r: int
    mark: int
    ecn_out: int
    progress: int | None
    base: int | None
    block: int | None
    step_min: int | None
    psn_rec: int | None
    alpha: int | None
    cnt_total: int | None
    cnt_op: int | None
    win_start: int | None
    generation: int | None

    @property
    def followed(self) -> bool:
        """The marker looks at this packet; otherwise it leaves every block as it is."""
        return self.block is not None

    @property
    def is_last(self) -> bool:
        """The opcode ends a message."""
        return "LAST" in self.opcode or "ONLY" in self.opcode

    @property
    def state(self) -> dict[str, int]:
        """The seven state columns by name; only for packets that are followed."""
        return {name: getattr(self, name) for name in STATE_COLUMNS}


@dataclass(slots=True)
class Settings:
    """What the settings read so far amount to."""

    jobs: dict[int, dict[str, str]] = field(default_factory=dict)
    """Job_ID -> parameter -> text, as in the file."""
    blocks: dict[tuple[int, int], int] = field(default_factory=dict)
    """(Job_ID, egress port) -> block."""
    red_above: int | None = None
    """RED marks every packet that leaves more than this many behind; None: RED is off."""

    def apply(self, setting: Setting) -> tuple[str, int, str] | None:
        """Take a setting in; return ("job", Job_ID, parameter) where it is a job's.

        Raises:
            ValueError: the key is unknown or the value is no number where one is needed.
        """
        parts = setting.key.split(".")
        if parts[0] == "job" and len(parts) == 3 and parts[2] in JOB_KEYS:
            self.jobs.setdefault(int(parts[1]), {})[parts[2]] = setting.value
            return "job", int(parts[1]), parts[2]
        if parts[0] == "block" and len(parts) == 3:
            self.blocks[int(parts[1]), int(parts[2])] = int(setting.value)
        elif setting.key == "red_above":
            self.red_above = None if setting.value == "none" else int(setting.value)
        elif setting.key == "format":
            if int(setting.value) != FORMAT:
                raise ValueError(f"format {setting.value}; this reader knows {FORMAT}")
        elif setting.key == "columns":
            if tuple(setting.value.split()) != COLUMNS:
                raise ValueError(f"columns differ from {' '.join(COLUMNS)}")
        else:
            raise ValueError(f"unknown key {setting.key!r}")
        return None


@dataclass(frozen=True, slots=True)
class Vector:
    """One file: its description, and its settings and packets in order."""

    name: str
    description: str
    items: tuple[Setting | Packet, ...]

    def replay(self) -> Iterator[tuple[Settings, list[tuple[int, str]], Packet]]:
        """Yield (settings in force, [(Job_ID, parameter)] changed since, packet) per packet.

        The same Settings object is updated and yielded again; the list is empty in most rows and
        holds everything before the first.
        """
        settings = Settings()
        changed: list[tuple[int, str]] = []
        for item in self.items:
            if isinstance(item, Setting):
                of_job = settings.apply(item)
                if of_job is not None:
                    changed.append(of_job[1:])
            else:
                yield settings, changed, item
                changed = []

    @property
    def packets(self) -> tuple[Packet, ...]:
        """All rows."""
        return tuple(item for item in self.items if isinstance(item, Packet))


def _number(text: str) -> int | None:
    return None if text == "-" else int(text, 0)


def parse(text: str, name: str) -> Vector:
    """Read the text of a vector file.

    Raises:
        VectorError: a line is neither comment, setting nor a whole row, a key is unknown, or a
            row comes before ``columns``.
    """
    description: list[str] = []
    items: list[Setting | Packet] = []
    probe = Settings()
    has_columns = False
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}, line {number}"
        stripped = line.strip()
        if stripped.startswith("#"):
            if not items:
                description.append(stripped.lstrip("# "))
        elif "=" in stripped:
            key, _, value = (part.strip() for part in stripped.partition("="))
            setting = Setting(key, value)
            try:
                probe.apply(setting)
            except ValueError as error:
                raise VectorError(f"{where}: {error}") from None
            has_columns |= key == "columns"
            items.append(setting)
        elif stripped:
            if not has_columns:
                raise VectorError(f"{where}: a row before the line 'columns = ...'")
            items.append(_row(stripped.split(), number, where))
    return Vector(name, "\n".join(description).strip(), tuple(items))


def _row(words: list[str], line: int, where: str) -> Packet:
    if len(words) != len(COLUMNS):
        raise VectorError(f"{where}: {len(words)} columns; a row has {len(COLUMNS)}")
    values: dict[str, object] = {}
    for column, word in zip(COLUMNS, words, strict=True):
        try:
            values[column] = word if column == "opcode" else _number(word)
        except ValueError:
            raise VectorError(f"{where}: {column} {word!r} is neither a number nor '-'") from None
    return Packet(line=line, **values)  # type: ignore[arg-type]


def load(path: Path) -> Vector:
    """Read a vector file; see :func:`parse`."""
    return parse(path.read_text(encoding="utf-8"), path.stem)


def load_all() -> list[Vector]:
    """Return every vector of the marker, by name."""
    return [load(path) for path in sorted(MARKER_DIR.glob("*.txt"))]
