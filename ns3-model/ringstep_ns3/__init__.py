"""Packet-level simulator of RoCEv2 ring collectives on ns-3.

::

    from ringstep_ns3 import Scenario, run

    results = run(Scenario.load("ring.toml"), seed=3)
    print(results.summary["jobs"][0]["cct_ns"]["median"])
    results.write("out/ring-3")
"""

__version__ = "0.1.0"

from ringstep_ns3.outfolder import OutputError
from ringstep_ns3.prepare import Prepared, prepare
from ringstep_ns3.results import Results, ResultsError
from ringstep_ns3.scenario import Scenario, ScenarioError, preset_names
from ringstep_ns3.simulate import Interrupted, Progress, run
from ringstep_ns3.sweep import Sweep, SweepError, run_sweep

__all__ = [
    "Interrupted",
    "OutputError",
    "Prepared",
    "Progress",
    "Results",
    "ResultsError",
    "Scenario",
    "ScenarioError",
    "Sweep",
    "SweepError",
    "prepare",
    "preset_names",
    "run",
    "run_sweep",
]
