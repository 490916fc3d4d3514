"""What a collective gives, by numpy, and a rank's random data for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Coll(IntEnum):
    BROADCAST = 0
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_REDUCE = 4


class Op(IntEnum):
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


TREE, RING = 0, 1
LL, SIMPLE = 0, 2

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64",
         "float16", "float32", "float64", "bfloat16")  # fmt: skip
SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)


def to_bfloat16(values: Array) -> Array:
    """float32 to the bits of bfloat16, to nearest even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Case:
    """One collective; fields as in ``ringstep::Work``."""

    coll: Coll
    count: int
    algo: int = RING
    proto: int = SIMPLE
    channels: int = 1
    chunk: int = 0
    type: int = 7
    op: Op = Op.SUM
    root: int = 0
    in_place: bool = False

    def line(self) -> str:
        fields = (self.coll, self.algo, self.proto, self.channels, self.chunk, self.type, self.op,
                  self.count, self.root, self.in_place)  # fmt: skip
        return " ".join(["run", *(str(int(field)) for field in fields)])

    @property
    def stored(self) -> np.dtype[Any]:
        return np.dtype("uint16" if TYPES[self.type] == "bfloat16" else TYPES[self.type])

    def sent(self, n_ranks: int) -> int:
        return self.count * (n_ranks if self.coll is Coll.REDUCE_SCATTER else 1)

    def received(self, n_ranks: int) -> int:
        return self.count * (n_ranks if self.coll is Coll.ALL_GATHER else 1)

    def data(self, rng: np.random.Generator, n_ranks: int) -> Array:
        """What one rank sends. Products stay near 1, so that floats neither vanish nor overflow."""
        n = self.sent(n_ranks)
        name = TYPES[self.type]
        if "float" not in name:
            raw = rng.integers(0, 256, n * self.stored.itemsize, dtype=np.uint8)
            return raw.view(self.stored)
        values = rng.uniform(0.5, 1.5, n) if self.op is Op.PROD else rng.normal(0, 1, n)
        if name == "bfloat16":
            return to_bfloat16(values)
        return values.astype(self.stored)


def check(case: Case, sent: list[Array], got: list[Array]) -> None:
    """Assert that each rank got what numpy says, and all the same bits where all get the same.

    Floats may differ by the rounding of n - 1 operations in any order; all else is exact.
    """
    n = len(sent)
    if case.coll in (Coll.ALL_REDUCE, Coll.ALL_GATHER, Coll.BROADCAST):
        for rank in range(1, n):
            assert got[rank].tobytes() == got[0].tobytes(), f"{case}: rank {rank} differs"
    if case.coll is Coll.BROADCAST:
        assert got[0].tobytes() == sent[case.root].tobytes(), case
        return
    if case.coll is Coll.ALL_GATHER:
        assert got[0].tobytes() == np.concatenate(sent).tobytes(), case
        return
    expected, slack = _reduced(case, sent)
    for rank in range(n):
        part = slice(None)
        if case.coll is Coll.REDUCE_SCATTER:
            part = slice(rank * case.count, (rank + 1) * case.count)
        if slack is None:
            assert np.array_equal(got[rank], expected[part]), f"{case}: rank {rank}"
            continue
        found = from_bfloat16(got[rank]) if TYPES[case.type] == "bfloat16" else got[rank]
        wrong = np.abs(found.astype(np.float64) - expected[part]) > slack[part]
        assert not wrong.any(), f"{case}: rank {rank}, {wrong.sum()} elements"


def _reduced(case: Case, sent: list[Array]) -> tuple[Array, Array | None]:
    name = TYPES[case.type]
    n = len(sent)
    exact = "float" not in name
    if exact:
        stack = np.stack(sent)
        with np.errstate(over="ignore"):
            match case.op:
                case Op.SUM:
                    return stack.sum(0, dtype=stack.dtype), None
                case Op.PROD:
                    return stack.prod(0, dtype=stack.dtype), None
                case Op.MAX:
                    return stack.max(0), None
                case Op.MIN:
                    return stack.min(0), None
                case Op.AVG:
                    total = stack.sum(0, dtype=stack.dtype)
                    quotient = np.abs(total.astype(object)) // n * np.sign(total).astype(object)
                    return quotient.astype(stack.dtype), None
    wide = [from_bfloat16(a) if name == "bfloat16" else a for a in sent]
    stack = np.stack(wide).astype(np.float64)
    epsilon = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}[name]
    match case.op:
        case Op.MAX:
            return stack.max(0), np.zeros(stack.shape[1])
        case Op.MIN:
            return stack.min(0), np.zeros(stack.shape[1])
        case Op.PROD:
            product = stack.prod(0)
            return product, np.abs(product) * epsilon * 2 * n + 1e-300
        case _:
            divide_by = n if case.op is Op.AVG else 1
            size = np.abs(stack).sum(0) / divide_by
            tiny = 2.0**-24 if name == "float16" else 1e-300
            return stack.sum(0) / divide_by, size * epsilon * (n + 1) + tiny


def join(arrays: Iterable[Array]) -> bytes:
    return b"".join(a.tobytes() for a in arrays)
