"""Policies without a learned model, to be beaten: NCCL alone, fixed best, thresholds, a bandit."""

from ringstep.hostlib.rivals.bandit import UcbBandit
from ringstep.hostlib.rivals.coordinated import Coordinated
from ringstep.hostlib.rivals.fixed import Fixed
from ringstep.hostlib.rivals.nccl import LeaveNccl
from ringstep.hostlib.rivals.threshold import CusumRule, ThresholdRule

__all__ = ["Coordinated", "CusumRule", "Fixed", "LeaveNccl", "ThresholdRule", "UcbBandit"]
