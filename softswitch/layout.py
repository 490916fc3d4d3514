"""How header fields are taken from, and put into, bytes with `struct`.

A header's wanted fields are covered by *chunks*: runs of whole bytes, each read or written as one
to a few big-endian integers of 1, 2, 4 or 8 bytes (*pieces*).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringstep.softswitch.model import FieldType, Header

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes `start`..`end` of a header and the fields that lie in them."""

    start: int
    end: int
    fields: tuple[FieldType, ...]

    def pieces(self) -> list[tuple[int, int]]:
        """(first byte, length) of each integer that covers the chunk."""
        result = []
        at = self.start
        while at < self.end:
            left = self.end - at
            size = next(s for s in (8, 4, 2, 1) if s <= left)
            result.append((at, size))
            at += size
        return result


def byte_range(field: FieldType) -> tuple[int, int]:
    """First byte of a field, and the byte after its last."""
    return field.offset // 8, (field.offset + field.width + 7) // 8


def chunks(fields: Iterable[FieldType]) -> list[Chunk]:
    """The fewest chunks around `fields`: those that share a byte share a chunk."""
    result: list[Chunk] = []
    for field in sorted(fields, key=lambda f: f.offset):
        start, end = byte_range(field)
        if result and start < result[-1].end:
            last = result.pop()
            result.append(Chunk(last.start, max(end, last.end), (*last.fields, field)))
        else:
            result.append(Chunk(start, end, (field,)))
    return result


def _widen(wanted: list[Chunk], size: int) -> list[Chunk]:
    """Grow chunks of 3, 5, 6 and 7 bytes to one integer where the bytes beside them are free."""
    result: list[Chunk] = []
    for index, chunk in enumerate(wanted):
        length = chunk.end - chunk.start
        target = next((s for s in (1, 2, 4, 8) if s >= length), length)
        low = result[-1].end if result else 0
        high = wanted[index + 1].start if index + 1 < len(wanted) else size
        missing = target - length
        right = min(missing, high - chunk.end)
        left = min(missing - right, chunk.start - low)
        if left + right == missing:
            chunk = Chunk(chunk.start - left, chunk.end + right, chunk.fields)
        result.append(chunk)
    return result


@dataclass(frozen=True, slots=True)
class UnpackPlan:
    """`targets` are unpacked with `fmt` (big endian); then each `after` line is executed."""

    fmt: str
    targets: tuple[str, ...]
    after: tuple[str, ...]


def _select(value: str, shift: int, width: int, total: int, signed: bool) -> str:
    """`width` bits of `value` (an unsigned expression of `total` bits), `shift` from the right."""
    text = value
    if shift:
        text = f"{text} >> {shift}"
    if shift + width < total:
        text = f"{text} & {(1 << width) - 1:#x}"
    if signed:
        half = 1 << (width - 1)
        text = f"(({text}) ^ {half:#x}) - {half:#x}"
    return text


def plan_unpack(header: Header, wanted: dict[str, str]) -> UnpackPlan:
    """How to read the fields `wanted` (field name -> variable) of a header."""
    types = [header.fields[name] for name in wanted]
    fmt: list[str] = []
    targets: list[str] = []
    after: list[str] = []
    at = 0
    for chunk in _widen(chunks(types), header.size):
        if chunk.start > at:
            fmt.append(f"{chunk.start - at}x")
        pieces = chunk.pieces()
        fmt.extend(_CODES[size] for _, size in pieces)
        at = chunk.end
        if len(pieces) == 1 and len(chunk.fields) == 1:
            field = chunk.fields[0]
            if field.width == 8 * (chunk.end - chunk.start) and not field.signed:
                targets.append(wanted[field.name])
                continue
        names = [f"b{len(targets) + i}" for i in range(len(pieces))]
        targets.extend(names)
        for field in chunk.fields:
            after.append(f"{wanted[field.name]} = {_from_pieces(field, pieces, names)}")
    return UnpackPlan("".join(fmt), tuple(targets), tuple(after))


def _from_pieces(field: FieldType, pieces: list[tuple[int, int]], names: list[str]) -> str:
    first, last = byte_range(field)
    used = [
        (start, size, name)
        for (start, size), name in zip(pieces, names, strict=True)
        if start < last and start + size > first
    ]
    end = used[-1][0] + used[-1][1]
    total = 8 * (end - used[0][0])
    parts = []
    for start, size, name in used:
        shift = 8 * (end - start - size)
        parts.append(f"{name} << {shift}" if shift else name)
    value = " | ".join(parts)
    if len(parts) > 1:
        value = f"({value})"
    return _select(value, 8 * end - field.offset - field.width, field.width, total, field.signed)


@dataclass(frozen=True, slots=True)
class Patch:
    """One write into a buffer: `expressions` packed with `fmt` at byte `offset` of the header."""

    offset: int
    fmt: str
    expressions: tuple[str, ...]


def covered(header: Header, names: Iterable[str]) -> set[str]:
    """All fields that share a byte with one of `names`: writing those needs these."""
    wanted = set(names)
    while True:
        ranges = [byte_range(header.fields[n]) for n in wanted]
        more = {
            f.name
            for f in header.fields.values()
            if any(a < byte_range(f)[1] and b > byte_range(f)[0] for a, b in ranges)
        }
        if more == wanted:
            return wanted
        wanted = more


def plan_patch(header: Header, values: dict[str, str]) -> list[Patch]:
    """How to write the fields `values` (name -> variable); closed under `covered`."""
    patches: list[Patch] = []
    end_of_last = -1
    for chunk in chunks(header.fields[name] for name in values):
        pieces = chunk.pieces()
        fmt = "".join(_CODES[size] for _, size in pieces)
        expressions = tuple(_to_piece(chunk, start, size, values) for start, size in pieces)
        if patches and end_of_last == chunk.start:
            last = patches.pop()
            patches.append(Patch(last.offset, last.fmt + fmt, last.expressions + expressions))
        else:
            patches.append(Patch(chunk.start, fmt, expressions))
        end_of_last = chunk.end
    return patches


def _to_piece(chunk: Chunk, start: int, size: int, values: dict[str, str]) -> str:
    end_bit = 8 * (start + size)
    parts = []
    for field in chunk.fields:
        field_end = field.offset + field.width
        if field_end <= 8 * start or field.offset >= end_bit:
            continue
        text = values[field.name]
        if field.signed:
            text = f"({text} & {(1 << field.width) - 1:#x})"
        shift = end_bit - field_end
        if shift < 0:
            text = f"{text} >> {-shift}"
        elif shift > 0:
            text = f"{text} << {shift}"
        if field.offset < 8 * start:
            text = f"({text}) & {(1 << 8 * size) - 1:#x}"
        parts.append(f"({text})" if " " in text else text)
    return " | ".join(parts)
