"""What a check of one part of a controller found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a part is. A warning hinders nothing now."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the list; ``text`` says what is there, or what is wrong and would be right."""

    part: str
    verdict: Verdict
    text: str

    def to_dict(self) -> dict[str, str]:
        """Return it with the keys of ``--json``."""
        return {"part": self.part, "verdict": self.verdict.value, "text": self.text}


def ok(part: str, text: str) -> Finding:
    """Return that a part is as it should be."""
    return Finding(part, Verdict.OK, text)


def warning(part: str, text: str) -> Finding:
    """Return that a part works, and what will go wrong later."""
    return Finding(part, Verdict.WARNING, text)


def problem(part: str, text: str) -> Finding:
    """Return that a part does not work."""
    return Finding(part, Verdict.PROBLEM, text)
