"""Whether a job's packets are marked when it starts, and with which parameters.

Where the operator leaves it to the controller, the measurements behind ``ringstep job recommend``
answer, for the fabric of the topology file and what was told of the job's traffic. The paths are
those of ECMP: the controller pins none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ringstep.controller.jobs import JobSpec, Marking
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
from ringstep.fabric.model import Topology
from ringstep.fabric.recommend import Confidence, Recommendation, recommend
from ringstep.protocol.marker import DEFAULT_PROFILE, MarkerParams

MTU: Final = 4096
"""Payload bytes of a packet where nobody told."""
_NO_EVIDENCE: Final = "marking does not start without evidence; the closed loop may try it"
_CHOICES: Final = {
    Marking.AUTO: jobs_pb2.MARKING_CHOICE_AUTO,
    Marking.ON: jobs_pb2.MARKING_CHOICE_ON,
    Marking.OFF: jobs_pb2.MARKING_CHOICE_OFF,
}


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
            choice=_CHOICES[self.choice],
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
    try:
        found = _advice(spec, topology, tenants=bool(neighbours) or spec.traffic.tenants)
    except FactError as error:
        return _unknown(spec, str(error))
    beside = ""
    if neighbours:
        more = f" and {len(neighbours) - 1} more" if len(neighbours) > 1 else ""
        beside = f"job {neighbours[0]!r}{more} may share its ports; "
    params = spec.params
    if spec.traffic.step_bytes:
        params = _advised(params, found.params, given)
    return Decision(
        replace(params, enabled=found.marking),
        Marking.AUTO,
        beside + found.marking_reason,
        found.confidence,
        found.closed_loop,
    )


def _unknown(spec: JobSpec, why: str) -> Decision:
    params = replace(spec.params, enabled=False)
    reason = f"{why}; {_NO_EVIDENCE}"
    return Decision(params, Marking.AUTO, reason, Confidence.NONE, closed_loop=True)


def _advice(spec: JobSpec, topology: Topology, *, tenants: bool) -> Recommendation:
    """Ask the measurements.

    Raises:
        FactError: too little is known to ask; the text says what, and how to tell it.
    """
    traffic = spec.traffic
    if not spec.rings:
        raise FactError("the ring is not known (--ring, beside --qp)")
    crossing = any(leaves_its_rack(topology, ring) for ring in spec.rings)
    if crossing and not traffic.step_bytes:
        raise FactError("the bytes per ring step are not known (--chunk)")
    # Of a job in one rack nothing matters but that, and it needs no delays.
    rtt_ns = traffic.rtt_ns or (None if crossing else 1)
    mtu = traffic.mtu or MTU
    facts = [fabric_facts(topology, ring, rtt_ns=rtt_ns, mtu=mtu) for ring in spec.rings]
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
        max(len(ring) for ring in spec.rings),
        traffic.sender or UNKNOWN,
        traffic.preset or UNKNOWN,
        crossing=crossing,
        plannable=False,
    )
    return recommend(fabric, job, load_table())


def _advised(
    params: MarkerParams, advice: MarkerParams, given: jobs_pb2.MarkerOverrides
) -> MarkerParams:
    """Return ``params`` with the advice's values where the operator gave none."""
    taken = params
    if not given.HasField("k"):
        taken = replace(taken, k=advice.k)
    if not given.HasField("tau"):
        taken = replace(taken, tau_num=advice.tau_num, tau_den=advice.tau_den)
    if not given.HasField("t_win_us"):
        taken = replace(taken, t_win=advice.t_win)
    if not given.HasField("n_sample"):
        taken = replace(taken, n_sample=advice.n_sample)
    if not given.HasField("n_warmup"):
        taken = replace(taken, n_warmup=advice.n_warmup)
    if not given.HasField("q_gate"):
        taken = replace(taken, q_gate=advice.q_gate)
    return taken
