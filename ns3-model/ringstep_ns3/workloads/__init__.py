"""Workloads: what training jobs compute and exchange, from files and from layer shapes.

:func:`build` makes a :class:`Workload` of a source and options, :func:`program` resolves it for a
number of ranks, :func:`core_ops` hands it to the core. Nothing but the last needs the core.
"""

from ringstep_ns3.workloads.astra import AstraFile, load_astra, parse_astra
from ringstep_ns3.workloads.chakra import read_chakra, write_chakra
from ringstep_ns3.workloads.generate import Training, train
from ringstep_ns3.workloads.layers import Layer, Model, gpt, resnet50, transformer, vgg16
from ringstep_ns3.workloads.model import (
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    Operation,
    Send,
    Workload,
    WorkloadError,
    groups,
    topological_order,
)
from ringstep_ns3.workloads.options import MODELS, WorkloadOptions, build
from ringstep_ns3.workloads.program import ProgramOp, Style, core_ops, program

__all__ = [
    "Workload",
    "Operation",
    "Compute",
    "Collective",
    "Send",
    "Kind",
    "Group",
    "Inner",
    "WorkloadError",
    "groups",
    "topological_order",
    "build",
    "WorkloadOptions",
    "MODELS",
    "AstraFile",
    "load_astra",
    "parse_astra",
    "read_chakra",
    "write_chakra",
    "Model",
    "Layer",
    "vgg16",
    "resnet50",
    "transformer",
    "gpt",
    "Training",
    "train",
    "program",
    "ProgramOp",
    "Style",
    "core_ops",
]
