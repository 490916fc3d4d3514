"""The software switch: executes p4c's BMv2 JSON (v1model) as generated Python.

`Switch` is the switch in memory; `ringstep.softswitch.runtime` puts it on wires behind a
P4Runtime server.
"""

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct
from ringstep.softswitch.queueing import QueueConfig

__all__ = ["PipelineError", "QueueConfig", "Switch", "UnsupportedConstruct", "compile_pipeline"]
