"""Pure functions over a fabric: topology file, graph model, routes, ring edges, ECMP.

Nothing here opens a socket or keeps state; everything a module returns follows from its
arguments alone, so the controller, the planner and the simulator see the same fabric.
"""

from ringstep.fabric.model import Endpoint, Host, Link, Red, Switch, Topology
from ringstep.fabric.topology import TopologyError, load_topology, parse_topology

__all__ = [
    "Endpoint",
    "Host",
    "Link",
    "Red",
    "Switch",
    "Topology",
    "TopologyError",
    "load_topology",
    "parse_topology",
]
