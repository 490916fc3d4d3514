"""What a switch does not take, and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ringstep.controller.plan import Update

NOT_KEPT: Final = "NOT_KEPT"
"""Code of an update that the switch accepted and then did not hold."""
_MAX_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Refusal:
    """One update that did not take effect, and why."""

    update: Update
    code: str
    message: str = ""

    def __str__(self) -> str:
        if self.code == NOT_KEPT:
            return f"{self.update}: accepted, but read back otherwise"
        reason = f"{self.code} ({self.message})" if self.message else self.code
        return f"{self.update}: {reason}"


def refusal_summary(refusals: Sequence[Refusal], total: int) -> str:
    """Say how many of ``total`` updates were refused, and name the first of them."""
    shown = [str(refusal) for refusal in refusals[:_MAX_SHOWN]]
    if len(refusals) > len(shown):
        shown.append(f"and {len(refusals) - len(shown)} more")
    return f"{len(refusals)} of {total} updates refused: " + "; ".join(shown)


class WriteRefusedError(Exception):
    """A write of which some updates were refused; the others took effect."""

    def __init__(self, refusals: Sequence[Refusal], total: int) -> None:
        self.refusals = tuple(refusals)
        super().__init__(refusal_summary(refusals, total))
