"""What runs at the hosts: step tagging, the software RNIC with DCQCN, and the wires it runs on."""

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
