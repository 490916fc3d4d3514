"""Measures a cluster once, on a clean network, and refuses to learn from a contended one.

The clean latencies of NCCL's choice become the baselines from which contention is seen from the
first call on (:func:`ringstep.hostlib.dynamic.baseline.save_calibration`); with sweeps the fluid
model is fitted to the cluster and the selector's last layers are adapted to it.
"""

from ringstep.hostlib.evaluate.calibration.clean import NotClean, Series
from ringstep.hostlib.evaluate.calibration.live import Calibration, measure, observe

__all__ = ["Calibration", "NotClean", "Series", "measure", "observe"]
