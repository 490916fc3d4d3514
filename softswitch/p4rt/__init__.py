"""P4Runtime v1 server of the software switch."""

from ringstep.softswitch.p4rt.server import P4RuntimeServer, serve
from ringstep.softswitch.p4rt.service import P4RuntimeService

__all__ = ["P4RuntimeServer", "P4RuntimeService", "serve"]
