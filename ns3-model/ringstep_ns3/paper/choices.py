"""What the paper leaves open, as named choices with defaults, and how each becomes scenario keys.

The defaults are what the paper's simulator (astra-sim with ns-3) does, where its sources say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ringstep.fabric.tomlfile import FileError
from ringstep_ns3.scenario import DCQCN_PRESETS, Scenario

_SHORT_RING: Final = 4


class PaperError(FileError):
    """A figure that is not there, or a choice that does not fit; one line per mistake."""


@dataclass(frozen=True)
class Choice:
    """One open question.

    Attributes:
        name: of the option, ``--NAME``.
        question: what the paper does not say.
        values: what can be chosen; the first is the default.
        keys: scenario keys that take the value; empty: see :func:`settings`.
        why: where the default comes from.
    """

    name: str
    question: str
    values: tuple[str, ...]
    keys: tuple[str, ...]
    why: str

    @property
    def default(self) -> str:
        """The value that is taken where none is given."""
        return self.values[0]


CHOICES: Final[Mapping[str, Choice]] = {
    choice.name: choice
    for choice in (
        Choice(
            "dependency",
            "When may step k + 1 leave?",
            ("count", "in_order", "per_chunk"),
            ("job.dependency",),
            "astra-sim counts arrivals: any one enables the next step",
        ),
        Choice(
            "notify",
            "What is an arrival?",
            ("sender_ack", "receiver"),
            ("job.notify",),
            "astra-sim tells both ends at the sender's last ACK",
        ),
        Choice(
            "sender",
            "A QP per step, or connections that stay?",
            ("qp_per_step", "persistent", "qp_pool"),
            ("job.sender",),
            "astra-sim opens a QP per message",
        ),
        Choice(
            "port",
            "Does ECMP see the step?",
            ("per_step", "sticky"),
            ("job.port",),
            "the step index travels in the UDP source port (paper, 4.7)",
        ),
        Choice(
            "nic",
            "Which QP does the NIC serve?",
            ("round_robin", "in_order"),
            ("transport.nic",),
            "HPCC's simulator takes one packet per QP in turn",
        ),
        Choice(
            "window",
            "A window in flight?",
            ("none", "bdp", "variable"),
            ("transport.window",),
            'HPCC\'s "dcqcn" has none, its "dcqcn_vwin" has; the paper follows HPCC',
        ),
        Choice(
            "preset",
            "Which DCQCN parameters?",
            ("hpcc_run", *(name for name in DCQCN_PRESETS if name != "hpcc_run")),
            ("cc.preset",),
            '"the RDMA configuration of HPCC" (paper, 4.1): its run.py',
        ),
        Choice(
            "rings",
            "Rings of 4 with passes, a ring of all nodes, or 2D rings?",
            ("figure", "short", "long", "2d"),
            (),
            'what the figure\'s text says: "multiple 1D" (2, 4, 7, 8a), or 2D as in Table 1 (5, '
            "8b, 8c); a figure without the form asked for stays what it is",
        ),
        Choice(
            "pfc",
            "Is PFC on, and with which headroom?",
            ("safe", "hpcc", "off"),
            (),
            "RoCE fabrics have it; astra-sim's headroom can drop at 10G and 1 us",
        ),
    )
}


def form_of(chosen: Mapping[str, str]) -> str:
    """Return the form of rings that choices ask for, ``1d`` or ``2d``; empty: the figure's."""
    return {"short": "1d", "long": "1d", "2d": "2d"}.get(chosen.get("rings", ""), "")


def settings(scenario: Scenario, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Return the scenario keys that choices stand for; ``chosen`` may leave choices out.

    ``scenario`` is the figure's, from which the length of rings and the passes come.

    Raises:
        PaperError: no such choice or value.
    """
    values: dict[str, Any] = {}
    for name, value in complete(chosen).items():
        if CHOICES[name].keys:
            values.update(dict.fromkeys(CHOICES[name].keys, value))
        elif name == "pfc":
            values["switch.pfc.enabled"] = value != "off"
            values["switch.pfc.headroom"] = "safe" if value == "off" else value
        elif value == "long":
            values.update(_long_rings(scenario))
    # Astra-sim's memory bus: between an arrival and what it sets off.
    values["job.endpoint_delay"] = "10ns"
    return values


def complete(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every choice, the default where none is chosen.

    Raises:
        PaperError: no such choice or value.
    """
    problems = []
    for name, value in chosen.items():
        if name not in CHOICES:
            problems.append(f"{name!r} is no choice; known: {', '.join(CHOICES)}")
        elif value not in CHOICES[name].values:
            problems.append(f"--{name} {value}: write {', '.join(CHOICES[name].values)}")
    if problems:
        raise PaperError("choices", problems)
    return {name: chosen.get(name, choice.default) for name, choice in CHOICES.items()}


def _long_rings(scenario: Scenario) -> dict[str, Any]:
    """One ring of a job's nodes instead of many of 4, with about as many bytes per node."""
    values: dict[str, Any] = {}
    fabric = scenario.fabric
    hosts = 0
    if fabric.kind == "leaf_spine":
        hosts = fabric.leaves * fabric.hosts_per_leaf
    for i, job in enumerate(scenario.job):
        ranks = job.ranks or hosts
        if job.ring_size != _SHORT_RING or ranks <= _SHORT_RING:
            continue
        values[f"job[{i + 1}].ring_size"] = "auto"
        values[f"job[{i + 1}].placement"] = "striped"
        values[f"job[{i + 1}].passes"] = max(1, round(job.passes * (_SHORT_RING - 1) / (ranks - 1)))
    return values
