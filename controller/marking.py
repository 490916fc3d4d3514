"""Whether a job's packets are marked when it starts, and with which parameters.

Where the operator leaves it to the controller, the measurements behind ``ringstep job recommend``
answer, for the fabric of the topology file, what was told of the job's traffic, and the paths that
it gets: pinned ones, or ECMP's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from ringstep.controller.jobs import (
    MARKING_VALUES,
    QP_PER_STEP,
    JobSpec,
    Marking,
    Traffic,
    with_marking,
)
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.facts import (
    UNKNOWN,
    FabricFacts,
    FactError,
    JobFacts,
    fabric_facts,
    leaves_its_rack,
)
from ringstep.fabric.guidance import load_table
from ringstep.fabric.memo import Same
from ringstep.fabric.model import Topology
from ringstep.fabric.recommend import Confidence, Recommendation, recommend
from ringstep.protocol.marker import DEFAULT_PROFILE, MarkerParams

_Override = Literal["k", "tau", "t_win_us", "n_sample", "n_warmup", "q_gate"]
MTU: Final = 4096
"""Payload bytes of a packet where nobody told."""
_NO_EVIDENCE: Final = "marking does not start without evidence; the closed loop may try it"
_ADVISED: Final[Mapping[_Override, tuple[str, ...]]] = {
    "k": ("k",),
    "tau": ("tau_num", "tau_den"),
    "t_win_us": ("t_win",),
    "n_sample": ("n_sample",),
    "n_warmup": ("n_warmup",),
    "q_gate": ("q_gate",),
}
"""Parameters that the advice tells, by the field that an operator gives instead."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The marker parameters of a job, and why they mark or not, in one line.

    ``confidence`` is None where the advice was not asked.
    """

    params: MarkerParams
    choice: Marking
    reason: str
    confidence: Confidence | None = None
    closed_loop: bool = False

    def to_proto(self) -> jobs_pb2.MarkingDecision:
        """Return it as it travels and is stored."""
        return jobs_pb2.MarkingDecision(
            choice=MARKING_VALUES[self.choice],
            reason=self.reason,
            confidence="" if self.confidence is None else self.confidence.value,
            closed_loop=self.closed_loop,
        )


def decide(
    spec: JobSpec,
    given: jobs_pb2.MarkerOverrides,
    topology: Topology,
    neighbours: Sequence[str] = (),
) -> Decision:
    """Return the parameters that a job starts with.

    ``given`` holds the parameters that the operator set: the advice does not change them.
    ``neighbours`` are the live jobs that share ports with this one: tenants, to the advice.
    """
    if spec.marking is not Marking.AUTO:
        return Decision(spec.params, spec.marking, "as asked")
    if spec.profile != DEFAULT_PROFILE:
        return _unknown(spec, f"only the profile {DEFAULT_PROFILE} was measured")
    tenants = bool(neighbours) or spec.traffic.tenants
    found = _advice(Same(topology), spec.rings, spec.traffic, spec.planned, tenants)
    if isinstance(found, str):
        return _unknown(spec, found)
    beside = ""
    if neighbours:
        more = f" and {len(neighbours) - 1} more" if len(neighbours) > 1 else ""
        beside = f"job {neighbours[0]!r}{more} may share its ports; "
    if spec.traffic.step_bytes:
        params = _advised(spec.params, found.params, given, enabled=found.marking)
    else:
        params = with_marking(spec.params, enabled=found.marking)
    return Decision(
        params,
        Marking.AUTO,
        beside + found.marking_reason,
        found.confidence,
        found.closed_loop,
    )


def _unknown(spec: JobSpec, why: str) -> Decision:
    params = with_marking(spec.params, enabled=False)
    reason = f"{why}; {_NO_EVIDENCE}"
    return Decision(params, Marking.AUTO, reason, Confidence.NONE, closed_loop=True)


@lru_cache(maxsize=4096)
def _advice(
    topology: Same[Topology],
    rings: tuple[tuple[str, ...], ...],
    traffic: Traffic,
    planned: bool,
    tenants: bool,
) -> Recommendation | str:
    """Ask the measurements; where too little is known to ask: what, and how to tell it."""
    try:
        return _ask(topology.value, rings, traffic, planned, tenants)
    except FactError as error:
        return str(error)


def _ask(
    topology: Topology,
    rings: tuple[tuple[str, ...], ...],
    traffic: Traffic,
    planned: bool,
    tenants: bool,
) -> Recommendation:
    if not rings:
        raise FactError("the ring is not known (--ring, beside --qp)")
    crossing = any(leaves_its_rack(topology, ring) for ring in rings)
    if crossing and not traffic.step_bytes:
        raise FactError("the bytes per ring step are not known (--chunk)")
    if crossing and planned and traffic.sender == QP_PER_STEP:
        raise FactError(
            f"for {QP_PER_STEP} senders only paths that turn with the step were measured, or ECMP "
            "(--paths ecmp)"
        )
    # Of a job in one rack nothing matters but that, and it needs no delays.
    rtt_ns = traffic.rtt_ns or (None if crossing else 1)
    mtu = traffic.mtu or MTU
    facts = [fabric_facts(topology, ring, rtt_ns=rtt_ns, mtu=mtu) for ring in rings]
    fabric = FabricFacts(
        rate_bps=min(each.rate_bps for each in facts),
        rtt_ns=max(each.rtt_ns for each in facts),
        oversubscription=facts[0].oversubscription,
        mtu=mtu,
        red_q_min=facts[0].red_q_min,
        tenants=tenants,
    )
    job = JobFacts(
        traffic.step_bytes or mtu,
        max(len(ring) for ring in rings),
        traffic.sender or UNKNOWN,
        traffic.preset or UNKNOWN,
        crossing=crossing,
        plannable=planned,
        pinned=planned,
    )
    return _recommended(fabric, job)


@lru_cache(maxsize=4096)
def _recommended(fabric: FabricFacts, job: JobFacts) -> Recommendation:
    """Many jobs differ by their hosts alone: these share one answer."""
    return recommend(fabric, job, load_table())


def _advised(
    params: MarkerParams, advice: MarkerParams, given: jobs_pb2.MarkerOverrides, *, enabled: bool
) -> MarkerParams:
    """Return ``params`` with the advice's values where the operator gave none."""
    taken: dict[str, Any] = {
        name: getattr(advice, name)
        for field, names in _ADVISED.items()
        if not given.HasField(field)
        for name in names
    }
    return replace(params, enabled=enabled, **taken)
