"""Reading a state block through the data plane: what a packet-out asks and a packet-in answers.

BMv2's P4Runtime has no register access, so the program itself copies the registers into a header.
Both headers are fixed-size and big-endian; the P4 program declares the same fields in the same
order (``p4src/include/headers.p4``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from ringstep.protocol.limits import ANCHORS_PER_JOB

OP_PACKET: Final = 0
"""``op`` of packet-out and packet-in: an ordinary packet."""
OP_READ_STATE: Final = 1
"""``op`` of packet-out: the payload is a ReadRequest; of packet-in: a StateReply."""

_REQUEST: Final = struct.Struct("!IHH")
_REPLY: Final = struct.Struct("!IHHQBHIBIIQ" + "BHI" * ANCHORS_PER_JOB)
_ANCHORS_AT: Final = 11
"""Fields of a reply before the anchors."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Ask for one block and for the anchors of its job.

    ``request_id`` (32 bits) comes back in the reply and tells replies apart.
    """

    request_id: int
    job: int
    block: int

    def encode(self) -> bytes:
        """Return the 8 bytes of the request."""
        return _REQUEST.pack(self.request_id, self.job, self.block)

    @classmethod
    def decode(cls, data: bytes) -> ReadRequest:
        """Read a request.

        Raises:
            ValueError: ``data`` is too short.
        """
        if len(data) < _REQUEST.size:
            raise ValueError(f"read request of {len(data)} bytes; {_REQUEST.size} are needed")
        return cls(*_REQUEST.unpack_from(data))


@dataclass(frozen=True, slots=True)
class StateReply:
    """One block and the anchors of a job, as the registers held them at ``now``.

    ``now`` and ``win_start`` are in microseconds of the switch's own clock. Each anchor is
    (generation, step, base).
    """

    request_id: int
    job: int
    block: int
    now: int
    generation: int
    step_min: int
    psn_rec: int
    alpha: int
    cnt_total: int
    cnt_op: int
    win_start: int
    anchors: tuple[tuple[int, int, int], ...]

    def encode(self) -> bytes:
        """Return the bytes that the data plane would send."""
        flat = [value for anchor in self.anchors for value in anchor]
        return _REPLY.pack(
            self.request_id, self.job, self.block, self.now, self.generation, self.step_min,
            self.psn_rec, self.alpha, self.cnt_total, self.cnt_op, self.win_start, *flat,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> StateReply:
        """Read a reply.

        Raises:
            ValueError: ``data`` is too short.
        """
        if len(data) < _REPLY.size:
            raise ValueError(f"state reply of {len(data)} bytes; {_REPLY.size} are needed")
        values = _REPLY.unpack_from(data)
        flat = values[_ANCHORS_AT:]
        anchors = tuple((flat[i], flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3))
        return cls(*(*values[:_ANCHORS_AT], anchors))
