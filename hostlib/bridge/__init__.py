"""The software RNIC as a process of its own, which the collective engine's ranks send through.

Its socket's protocol is ``native/engine/rnic_bridge.h``. ``python -m ringstep.hostlib.bridge``
starts one; :class:`Bridge` runs one inside another program.
"""

from ringstep.hostlib.bridge.attach import Attachment, WireError, attach
from ringstep.hostlib.bridge.messages import Endpoint, EndpointError
from ringstep.hostlib.bridge.service import Bridge, BridgeConfig
from ringstep.hostlib.bridge.sockets import SocketInUse

__all__ = [
    "Attachment",
    "Bridge",
    "BridgeConfig",
    "Endpoint",
    "EndpointError",
    "SocketInUse",
    "WireError",
    "attach",
]
