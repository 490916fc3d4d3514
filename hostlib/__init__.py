"""What runs at the hosts: step tagging, the software RNIC with DCQCN, and the wires it runs on.

The names below are loaded when they are asked for: a rank or a coordinator, which is in this
package too, has no use for the RNIC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringstep.hostlib.dcqcn import (
        DcqcnParams,
        NotificationMode,
        NotificationPoint,
        Reaction,
        ReactionPoint,
        preset,
    )
    from ringstep.hostlib.rnic import (
        Arrival,
        Completion,
        QpStateError,
        QueuePair,
        SoftRnic,
        Status,
        WorkRequest,
    )
    from ringstep.hostlib.tagging import Placement, PortPerStep, QpPool
    from ringstep.hostlib.wires import AfPacketWire, HostLoop, UdpWire, VirtualNet

__all__ = [
    "AfPacketWire",
    "Arrival",
    "Completion",
    "DcqcnParams",
    "HostLoop",
    "NotificationMode",
    "NotificationPoint",
    "Placement",
    "PortPerStep",
    "QpPool",
    "QpStateError",
    "QueuePair",
    "Reaction",
    "ReactionPoint",
    "SoftRnic",
    "Status",
    "UdpWire",
    "VirtualNet",
    "WorkRequest",
    "preset",
]

_HOME = {
    "dcqcn": (
        "DcqcnParams", "NotificationMode", "NotificationPoint", "Reaction", "ReactionPoint",
        "preset",
    ),
    "rnic": (
        "Arrival", "Completion", "QpStateError", "QueuePair", "SoftRnic", "Status", "WorkRequest",
    ),
    "tagging": ("Placement", "PortPerStep", "QpPool"),
    "wires": ("AfPacketWire", "HostLoop", "UdpWire", "VirtualNet"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
