"""Step tags on real NICs: the library of ``native/tagger`` (``ringstep_tag.h``) from Python.

Training frameworks link or load the C library; this is for tools and tests. Queue pairs are
addresses of rdma-core's ``struct ibv_qp``.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntFlag
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

import typer
from rich.console import Console

from ringstep.hostlib.cli_options import fail
from ringstep.hostlib.native.build import BuildError, build_tagger
from ringstep.protocol.tag import TagLayout

__all__ = [
    "Capabilities",
    "Capability",
    "Cost",
    "NicTagger",
    "TagError",
    "load",
    "measure",
    "probe",
]

CANNOT: Final = 1


class Capability(IntFlag):
    """What a probe found; ``ringstep_tag.h`` explains each."""

    VERBS = 1 << 0
    MLX5 = 1 << 1
    SETTER = 1 << 2
    DEVICE = 1 << 3
    MLX5_DEVICE = 1 << 4
    ETHERNET = 1 << 5
    ROCE_V2 = 1 << 6
    ACTIVE = 1 << 7
    FIRMWARE_KNOWN = 1 << 8
    FIRMWARE = 1 << 9
    RANGE_KNOWN = 1 << 10
    RANGE = 1 << 11


class TagError(OSError):
    """The library refused, or the NIC did; ``errno`` and the text say what and why."""


@dataclass(frozen=True)
class Capabilities:
    """What one port of a NIC can do."""

    device: str
    port: int
    flags: Capability
    can_tag: bool
    sports: tuple[int, int] | None
    """Least and most UDP source port of the device, None if it does not say."""
    findings: tuple[str, ...]
    """A line each: "ok  ...", "no  ..." or "?   ...", with what to do."""


@dataclass(frozen=True)
class Cost:
    """What setting ports has cost so far: firmware commands, and their time."""

    calls: int
    skipped: int
    """Steps whose port was set already: no command."""
    failed: int
    min_ns: int
    median_ns: int
    """Of the last 1,024 commands."""
    max_ns: int


class _Layout(ctypes.Structure):
    _fields_ = (("job_bits", ctypes.c_uint32), ("step_bits", ctypes.c_uint32))


class _Capabilities(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint32),
        ("min_sport", ctypes.c_uint16),
        ("max_sport", ctypes.c_uint16),
        ("port", ctypes.c_uint32),
        ("device", ctypes.c_char * 64),
        ("text", ctypes.c_char * 2048),
    )


class _Cost(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("calls", "skipped", "failed", "min_ns", "median_ns", "max_ns")
    )


@cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    layout = _Layout
    for name, result, arguments in (
        ("rt_last_error", ctypes.c_char_p, ()),
        ("rt_layout_check", ctypes.c_int, (layout,)),
        ("rt_sport", ctypes.c_uint16, (layout, u32, u64)),
        ("rt_flow_label", u32, (layout, u32, u64)),
        ("rt_step_of", u32, (layout, ctypes.c_uint16)),
        ("rt_job_tag_of", u32, (layout, ctypes.c_uint16)),
        ("rt_ahead", ctypes.c_int, (layout, u64, u64)),
        ("rt_max_skew", u32, (layout,)),
        ("rt_wraps_after", u32, (layout,)),
        ("rt_pool_layout", ctypes.c_int, (u32, ctypes.POINTER(layout))),
        ("rt_pool_index", u32, (u32, u64)),
        ("rt_probe", ctypes.c_int, (ctypes.c_char_p, ctypes.POINTER(_Capabilities))),
        ("rt_probe_context", ctypes.c_int, (pointer, u32, ctypes.POINTER(_Capabilities))),
        ("rt_can_tag", ctypes.c_int, (u32,)),
        ("rt_tagger_create", ctypes.c_int, (ctypes.POINTER(pointer), layout, u32)),
        ("rt_tagger_destroy", None, (pointer,)),
        ("rt_set_step", ctypes.c_int, (pointer, pointer, u64)),
        ("rt_pool_preset", ctypes.c_int, (pointer, ctypes.POINTER(pointer), u32)),
        ("rt_forget", None, (pointer, pointer)),
        ("rt_measure", ctypes.c_int, (ctypes.c_char_p, u32, ctypes.POINTER(_Cost))),
        ("rt_get_cost", None, (pointer, ctypes.POINTER(_Cost))),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def load(path: Path | None = None) -> ctypes.CDLL:
    """Return the library with its functions' types set.

    Args:
        path: of libringstep-tag.so; by default ``RINGSTEP_TAG_LIBRARY``, else the project's own
            build, made where it is missing.

    Raises:
        BuildError: it cannot be built. OSError: it cannot be loaded.
    """
    named = os.environ.get("RINGSTEP_TAG_LIBRARY") if path is None else str(path)
    return _load(named or str(build_tagger().library))


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        text: bytes = library.rt_last_error()
        raise TagError(status, text.decode(errors="replace"))


def _found(library: ctypes.CDLL, found: _Capabilities) -> Capabilities:
    flags = Capability(found.flags)
    known = Capability.RANGE_KNOWN in flags
    return Capabilities(
        device=found.device.decode(errors="replace"),
        port=found.port,
        flags=flags,
        can_tag=bool(library.rt_can_tag(found.flags)),
        sports=(found.min_sport, found.max_sport) if known else None,
        findings=tuple(found.text.decode(errors="replace").splitlines()),
    )


def probe(device: str = "", *, library: ctypes.CDLL | None = None) -> Capabilities:
    """Find out whether a NIC's queue pairs can be tagged, and what is missing.

    Args:
        device: "mlx5_0", or "mlx5_0:1" with the port; "" for the first that can, else the first.
        library: as :func:`load` returns it.

    Raises:
        TagError: the name is no device's or the port is no number. What is missing is a finding.
    """
    library = load() if library is None else library
    found = _Capabilities()
    _check(library, library.rt_probe(device.encode(), ctypes.byref(found)))
    return _found(library, found)


def _cost(cost: _Cost) -> Cost:
    return Cost(*(getattr(cost, field[0]) for field in _Cost._fields_))


def measure(device: str, count: int = 1000, *, library: ctypes.CDLL | None = None) -> Cost:
    """Find out what a firmware command costs: sets ports of a queue pair made for it.

    Args:
        device: as for :func:`probe`, but named.
        count: how many ports, 1 to 16384.
        library: as :func:`load` returns it.

    Raises:
        TagError: the NIC cannot be tagged, or something failed.
    """
    library = load() if library is None else library
    cost = _Cost()
    _check(library, library.rt_measure(device.encode(), count, ctypes.byref(cost)))
    return _cost(cost)


class NicTagger:
    """Sets the source ports of a job's queue pairs. Use it as a context manager."""

    def __init__(
        self, layout: TagLayout, job_tag: int = 0, *, library: ctypes.CDLL | None = None
    ) -> None:
        """Raises TagError: the job tag does not fit, or rdma-core is missing or too old."""
        self._library = load() if library is None else library
        self._handle = ctypes.c_void_p()
        if not 0 <= job_tag < 1 << 32:
            raise ValueError(f"job tag {job_tag} does not fit in 32 bits")
        status = self._library.rt_tagger_create(
            ctypes.byref(self._handle), _Layout(layout.job_bits, layout.step_bits), job_tag
        )
        _check(self._library, status)

    def set_step(self, qp: int, step: int) -> None:
        """Have queue pair ``qp`` send with the port of ``step``. Raises TagError."""
        if not 0 <= step < 1 << 64:
            raise ValueError(f"step {step} is not from 0 to 2^64 - 1")
        _check(self._library, self._library.rt_set_step(self._handle, qp, step))

    def preset_pool(self, qps: Sequence[int]) -> None:
        """Give the queue pairs of a pool their ports, once. Raises TagError."""
        array = (ctypes.c_void_p * len(qps))(*qps)
        _check(self._library, self._library.rt_pool_preset(self._handle, array, len(qps)))

    def forget(self, qp: int) -> None:
        """Forget the port of a queue pair that is destroyed or leaves RTS."""
        self._library.rt_forget(self._handle, qp)

    @property
    def cost(self) -> Cost:
        """Commands and their time so far."""
        cost = _Cost()
        self._library.rt_get_cost(self._handle, ctypes.byref(cost))
        return _cost(cost)

    def close(self) -> None:
        """Free the tagger; ports stay as they are. Closing twice is allowed."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._library.rt_tagger_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def probe_nic(
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME[:PORT]",
            help="As `ibv_devices` and NCCL_IB_HCA name it (default: the first that can tag).",
        ),
    ] = "",
    measured: Annotated[
        int,
        typer.Option(
            "--measure",
            metavar="N",
            min=0,
            max=1 << 14,
            help="Set N ports on a queue pair made for it, and tell what a command costs.",
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether this machine's NIC can carry step tags, and what is missing.

    Exit status: 0 it can, 1 it cannot, 2 the question is wrong.

    Example: ringstep tuner probe-nic --device mlx5_0 --measure 1000
    """
    out = Console(emoji=False, highlight=False, soft_wrap=True)
    try:
        found = probe(device)
        cost = None
        if measured and found.can_tag:
            cost = measure(f"{found.device}:{found.port}", measured)
    except (TagError, BuildError, OSError) as error:
        fail(error.strerror or str(error) if isinstance(error, OSError) else str(error))
    if as_json:
        out.print(
            json.dumps(
                {
                    "device": found.device or None,
                    "port": found.port,
                    "can_tag": found.can_tag,
                    "capabilities": [one.name.lower() for one in found.flags if one.name],
                    "sports": found.sports,
                    "findings": found.findings,
                    "cost": None if cost is None else asdict(cost),
                },
                indent=2,
            ),
            markup=False,
        )
    else:
        for line in found.findings:
            out.print(line, markup=False)
        if cost is not None:
            out.print(
                f"a change of port takes {cost.median_ns / 1e3:.1f} us "
                f"({cost.min_ns / 1e3:.1f} to {cost.max_ns / 1e3:.1f}, {cost.calls} commands)"
            )
        name = f"{found.device}:{found.port}" if found.device else "no NIC"
        verdict = "can carry step tags" if found.can_tag else "cannot carry step tags"
        out.print(f"{name} {verdict}" if found.device else "no NIC here can carry step tags")
    if not found.can_tag:
        raise typer.Exit(CANNOT)
