"""Reads ``tests/vectors/uec/headers.txt``; its format is told there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HEADERS = Path(__file__).resolve().parent / "uec" / "headers.txt"


@dataclass(frozen=True, slots=True)
class Vector:
    """The 24 bytes of a PDS and a SES header, and what they say."""

    name: str
    data: bytes
    pds: dict[str, int]
    ses: dict[str, int]
    tag: dict[str, int] | None


def _fields(text: str) -> dict[str, int]:
    pairs = (part.split() for part in text.split(","))
    return {name: int(value, 0) for name, value in pairs}


def load() -> list[Vector]:
    """Return every vector, in order."""
    found: list[dict[str, str]] = []
    for line in HEADERS.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            found.append({"name": text.strip("[]")})
        elif text:
            key, _, value = text.partition("=")
            found[-1][key.strip()] = value.strip()
    return [
        Vector(
            v["name"],
            bytes.fromhex(v["bytes"]),
            _fields(v["pds"]),
            _fields(v["ses"]),
            None if v["tag"] == "none" else _fields(v["tag"]),
        )
        for v in found
    ]
