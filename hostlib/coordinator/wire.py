"""Messages as bytes, and frames that only holders of the job's token can write.

A message is a kind (1 byte), the length of a JSON part (4 bytes, big-endian), that part, and an
array as it lies in memory. A frame is its length (4 bytes, big-endian), a message, and the first 16
bytes of an HMAC-SHA256 over direction, number and message under the session's key, so that a frame
can be neither made up, changed, repeated nor left out. What does not fit raises
:class:`WireError`; nothing in a frame is trusted before that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from typing import Any, Final

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    Command,
    CommGone,
    CommStatus,
    Event,
    Gpu,
    NodeHello,
    Offer,
    OfferState,
    Outcome,
    Records,
    Where,
)
from ringstep.hostlib.coordinator.policy import GpuFigures
from ringstep.hostlib.coordinator.thinning import THIN_MAX
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, Scope

__all__ = ["FRAME_MAX", "FrameReader", "Refused", "Sealer", "WireError", "decode", "encode",
           "hello_mac", "session_key"]  # fmt: skip

VERSION: Final = 1
FRAME_MAX: Final = 1 << 20
RECORDS_MAX: Final = 8192
"""Telemetry slots in one message: 512 KiB."""
_MAC_BYTES: Final = 16
_TEXT_MAX: Final = 1000
_U64: Final = (1 << 64) - 1
_ENTRIES_BYTES: Final = lay.COLLECTIVES * lay.SIZE_CLASSES * lay.ENTRY.itemsize
_HEAD: Final = struct.Struct(">BI")
_LENGTH: Final = struct.Struct(">I")


class WireError(ValueError):
    """Bytes that are no message of this version."""


class Refused:
    """The skeleton does not want this stub; told once it has proven who it is."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


Message = Event | Command | Refused | None
"""None keeps a link alive."""

_PING, _REFUSED, _HELLO, _STATUS, _GONE, _RECORDS, _GPU, _OUTCOME, _OFFER, _ABANDON = range(10)


# --- messages ---


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    blob = b""
    body: dict[str, Any] = {}
    if message is None:
        kind = _PING
    elif isinstance(message, Refused):
        kind, body = _REFUSED, {"reason": message.reason[:_TEXT_MAX]}
    elif isinstance(message, NodeHello):
        kind, body = _HELLO, {"epoch": message.last_epoch, "file": message.file_id}
    elif isinstance(message, CommStatus):
        kind, body, blob = _STATUS, _status_body(message), _bytes(message.table)
    elif isinstance(message, CommGone):
        kind, body = _GONE, {"where": message.where}
    elif isinstance(message, Records):
        kind = _RECORDS
        body = {"generations": list(message.generations.items()), "lost": message.lost,
                "thin": message.thin}  # fmt: skip
        blob = _bytes(message.slots)
    elif isinstance(message, Gpu):
        figures = message.figures
        names = GpuFigures.__slots__
        body = {} if figures is None else {n: getattr(figures, n) for n in names}
        kind = _GPU
    elif isinstance(message, Outcome):
        kind = _OUTCOME
        body = {
            "where": message.where, "epoch": message.epoch, "state": message.state.value,
            "reasons": [r[:_TEXT_MAX] for r in message.reasons[:8]], "ms": message.took_ms,
        }  # fmt: skip
    elif isinstance(message, Offer):
        kind, blob = _OFFER, _bytes(message.entries)
        body = {"where": message.where, "epoch": message.epoch, "scope": int(message.scope)}
    elif isinstance(message, Abandon):
        kind, body = _ABANDON, {"where": message.where, "epoch": message.epoch}
    else:
        raise TypeError(f"{type(message).__name__} does not go over a link")
    text = json.dumps(body, separators=(",", ":")).encode()
    return _HEAD.pack(kind, len(text)) + text + blob


def urgent(raw: bytes) -> bool:
    """Whether a message is part of a switch: others may wait."""
    return raw[:1] not in (bytes([_PING]), bytes([_GPU]), bytes([_RECORDS]))


def _bytes(array: np.ndarray[Any, Any] | None) -> bytes:
    return b"" if array is None else array.tobytes()


def _status_body(status: CommStatus) -> dict[str, Any]:
    return {
        "where": status.where, "id": status.comm_id, "n_ranks": status.n_ranks,
        "n_nodes": status.n_nodes, "scope": int(status.scope), "ranks": status.ranks,
        "whole": status.whole, "trusted": status.trusted, "frozen": status.frozen,
        "epoch": status.epoch,
        "usable": [[int(c), [[int(a), int(p)] for a, p in sorted(pairs)]]
                   for c, pairs in status.usable.items()],
    }  # fmt: skip


def decode(raw: bytes) -> Message:
    """Return the message that bytes hold.

    Raises:
        WireError: they hold none.
    """
    if len(raw) < _HEAD.size:
        raise WireError("shorter than a message's head")
    kind, length = _HEAD.unpack_from(raw)
    if length > len(raw) - _HEAD.size:
        raise WireError("longer inside than outside")
    try:
        body = json.loads(raw[_HEAD.size : _HEAD.size + length])
        return _decoded(kind, _Fields(body), raw[_HEAD.size + length :])
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise WireError(f"kind {kind}: {error}") from error


class _Fields:
    """Reads a JSON object strictly."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise WireError("not an object")
        self._body = body

    def get(self, name: str) -> Any:
        if name not in self._body:
            raise WireError(f"{name} is missing")
        return self._body[name]

    def integer(self, name: str, most: int = _U64) -> int:
        return whole_number(self.get(name), name, most)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise WireError(f"{name} is not true or false")
        return value

    def where(self) -> Where:
        value = self.get("where")
        if not isinstance(value, list) or len(value) != 2:
            raise WireError("where is not a pair")
        return (
            whole_number(value[0], "block", lay.MAX_COMMS - 1),
            whole_number(value[1], "generation", 0xFFFFFFFF),
        )

    def items(self, name: str, most: int) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise WireError(f"{name} is not a list of at most {most}")
        return value


def whole_number(value: Any, name: str, most: int) -> int:
    """Return a number from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise WireError(f"{name} is not a number from 0 to {most}")
    return value


def _decoded(kind: int, body: _Fields, blob: bytes) -> Message:
    if blob and kind not in (_STATUS, _RECORDS, _OFFER):
        raise WireError(f"{len(blob)} bytes too many")
    if kind == _PING:
        return None
    if kind == _REFUSED:
        return Refused(str(body.get("reason"))[:_TEXT_MAX])
    if kind == _HELLO:
        return NodeHello(body.integer("epoch", lay.EPOCH_MAX), body.integer("file"))
    if kind == _STATUS:
        return _status(body, blob)
    if kind == _GONE:
        return CommGone(body.where())
    if kind == _RECORDS:
        return _records(body, blob)
    if kind == _GPU:
        return Gpu(_figures(body))
    if kind == _OUTCOME:
        reasons = tuple(str(r)[:_TEXT_MAX] for r in body.items("reasons", 8))
        state = OfferState(body.get("state"))
        took = float(body.get("ms"))
        return Outcome(body.where(), body.integer("epoch", lay.EPOCH_MAX), state, reasons, took)
    if kind == _OFFER:
        if len(blob) != _ENTRIES_BYTES:
            raise WireError(f"a table of {len(blob)} bytes, not {_ENTRIES_BYTES}")
        scope = Scope(body.integer("scope", 1))
        return Offer(body.where(), body.integer("epoch", lay.EPOCH_MAX), scope, _entries(blob))
    if kind == _ABANDON:
        return Abandon(body.where(), body.integer("epoch", lay.EPOCH_MAX))
    raise WireError(f"no message is of kind {kind}")


def _entries(blob: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(blob, lay.ENTRY).reshape(lay.COLLECTIVES, lay.SIZE_CLASSES).copy()


def _status(body: _Fields, blob: bytes) -> CommStatus:
    if len(blob) not in (0, _ENTRIES_BYTES):
        raise WireError(f"a table of {len(blob)} bytes, not {_ENTRIES_BYTES}")
    usable = {}
    for entry in body.items("usable", lay.COLLECTIVES):
        which, pairs = entry
        usable[Collective(which)] = frozenset((Algo(a), Proto(p)) for a, p in pairs)
    ranks = body.items("ranks", lay.MAX_RANKS)
    epoch = body.get("epoch")
    return CommStatus(
        where=body.where(),
        comm_id=body.integer("id"),
        n_ranks=body.integer("n_ranks", 0xFFFFFFFF),
        n_nodes=body.integer("n_nodes", 0xFFFFFFFF),
        scope=Scope(body.integer("scope", 1)),
        ranks=tuple(whole_number(r, "rank", 0xFFFFFFFE) for r in ranks),
        whole=body.flag("whole"),
        trusted=body.flag("trusted"),
        frozen=body.flag("frozen"),
        epoch=None if epoch is None else whole_number(epoch, "epoch", lay.EPOCH_MAX),
        usable=usable,
        table=_entries(blob) if blob else None,
    )


def _records(body: _Fields, blob: bytes) -> Records:
    if len(blob) % lay.RECORD.itemsize or len(blob) > RECORDS_MAX * lay.RECORD.itemsize:
        raise WireError(f"{len(blob)} bytes are no telemetry slots")
    generations = {}
    for pair in body.items("generations", lay.MAX_COMMS):
        block, generation = pair
        generations[whole_number(block, "block", lay.MAX_COMMS - 1)] = whole_number(
            generation, "generation", 0xFFFFFFFF
        )
    slots = np.frombuffer(blob, lay.RECORD).copy()
    return Records(slots, generations, body.integer("lost"), body.integer("thin", THIN_MAX))


def _figures(body: _Fields) -> GpuFigures | None:
    found: dict[str, Any] = {}
    for name in GpuFigures.__slots__:
        value = body._body.get(name)
        if value is None:
            continue
        if name == "throttled":
            found[name] = body.flag(name)
        else:
            found[name] = float(value)
    return GpuFigures(**found) if found else None


def split(records: Records) -> list[Records]:
    """Return records in messages that fit a frame."""
    slots = records.slots
    parts = [slots[i : i + RECORDS_MAX] for i in range(0, max(len(slots), 1), RECORDS_MAX)]
    return [
        Records(part, records.generations, records.lost if i == 0 else 0, records.thin)
        for i, part in enumerate(parts)
    ]


# --- frames ---


def hello_mac(token: int, role: bytes, *parts: bytes) -> bytes:
    """Return the proof of knowing the token, for one role and one exchange of nonces."""
    what = b"".join(len(part).to_bytes(2, "big") + part for part in (role, *parts))
    return hmac.digest(token.to_bytes(8, "big"), what, "sha256")


def session_key(token: int, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the key of one session."""
    return hello_mac(token, b"session", server_nonce, client_nonce)


class Sealer:
    """Makes and checks frames of one direction of one session."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = hashlib.sha256(direction + key).digest()
        self._number = 0

    def _mac(self, message: bytes) -> bytes:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        return hmac.digest(self._key, number + message, "sha256")[:_MAC_BYTES]

    def seal(self, message: bytes) -> bytes:
        """Return the next frame's content."""
        return message + self._mac(message)

    def open(self, content: bytes) -> bytes:
        """Return the message of the next frame's content.

        Raises:
            WireError: it was not written with this session's key, or out of order.
        """
        message, mac = content[:-_MAC_BYTES], content[-_MAC_BYTES:]
        if len(content) < _MAC_BYTES or not hmac.compare_digest(mac, self._mac(message)):
            raise WireError("a frame that is not of this session")
        return message


def framed(content: bytes) -> bytes:
    """Return content with its length in front."""
    if len(content) > FRAME_MAX:
        raise WireError(f"{len(content)} bytes; a frame has at most {FRAME_MAX}")
    return _LENGTH.pack(len(content)) + content


class FrameReader:
    """Cuts a stream into frames, however it comes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes of one frame's content; raised once the other side has proven who it is."""
        self._buffer = bytearray()

    def feed(self, received: bytes) -> None:
        """Take in what was received."""
        self._buffer += received

    def next(self) -> bytes | None:
        """Return the next frame's content, None where it is not complete.

        Raises:
            WireError: longer than allowed.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self.limit:
            raise WireError(f"a frame of {length} bytes, at most {self.limit} are allowed here")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        content = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return content
