"""The message that registers a job, from Python values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from ringstep.controller.jobs import (
    CARRIERS,
    FOLLOWERS,
    MARKING_VALUES,
    MATCH_KINDS,
    MODE_VALUES,
    PATHS_CHOICES,
    SCOPE_VALUES,
    Followers,
    Marking,
    MatchKind,
    PathsChoice,
    QueuePair,
    Tag,
    Traffic,
)
from ringstep.controller.v1 import jobs_pb2
from ringstep.protocol.marker import ProgressMode, Scope

Q_GATE_OFF: Final = -1
"""Value of ``q_gate`` that switches the queue gate off."""

_MATCH = {match: value for value, match in MATCH_KINDS.items()}
_PATHS = {paths: value for value, paths in PATHS_CHOICES.items()}
_FOLLOWERS = {followers: value for value, followers in FOLLOWERS.items()}
_CARRIER = {carrier: value for value, carrier in CARRIERS.items()}


def job_spec(
    name: str,
    *,
    rings: Iterable[Sequence[str]] = (),
    channels: Sequence[int] = (),
    rails: Sequence[str] = (),
    queue_pairs: Iterable[QueuePair] = (),
    match: MatchKind | None = None,
    tag: Tag | None = None,
    uec_job_ids: Iterable[int] = (),
    profile: str = "",
    k: float | None = None,
    tau: Fraction | None = None,
    t_win_us: int | None = None,
    n_sample: int | None = None,
    n_warmup: int | None = None,
    alpha_max: int | None = None,
    q_gate: int | None = None,
    step_bits: int | None = None,
    job_bits: int | None = None,
    mode: ProgressMode | None = None,
    packets_per_step: int | None = None,
    marking: Marking | None = None,
    traffic: Traffic | None = None,
    scope: Scope | None = None,
    tenant: str = "",
    paths: PathsChoice | None = None,
    followers: Followers | None = None,
    lease_s: int = 0,
) -> jobs_pb2.JobSpec:
    """Return the message that registers a job; what is None keeps the profile's value.

    ``rings``: hosts in ring order, once per ring. ``channels`` and ``rails`` belong to them in
    order: how many channels go around a ring, and its rail's name; both may be left out. Without
    ``marking`` the controller decides, by ``traffic`` and its fabric. ``lease_s``: seconds after
    which the job is released unless renewed; 0: what the controller gives.

    Raises:
        ValueError: a number does not fit its protobuf field, or there are more ``channels`` or
            ``rails`` than rings.
    """
    spec = jobs_pb2.JobSpec(
        name=name,
        rings=_rings([list(ring) for ring in rings], channels, rails),
        queue_pairs=[
            jobs_pb2.QueuePair(src=pair.src, dst=pair.dst, dest_qp=pair.dest_qp)
            for pair in queue_pairs
        ],
        uec_job_ids=uec_job_ids,
        profile=profile,
        overrides=marker_overrides(
            k=k,
            tau=tau,
            t_win_us=t_win_us,
            n_sample=n_sample,
            n_warmup=n_warmup,
            alpha_max=alpha_max,
            q_gate=q_gate,
            step_bits=step_bits,
            job_bits=job_bits,
            mode=mode,
            packets_per_step=packets_per_step,
            scope=scope,
        ),
        tenant=tenant,
        lease_s=lease_s,
    )
    if match is not None:
        spec.match = _MATCH[match]
    if tag is not None:
        spec.tag.CopyFrom(jobs_pb2.Tag(carrier=_CARRIER[tag.carrier], value=tag.value))
    if marking is not None:
        spec.marking = MARKING_VALUES[marking]
    if traffic is not None:
        spec.traffic.CopyFrom(
            jobs_pb2.Traffic(
                sender=traffic.sender,
                preset=traffic.preset,
                step_bytes=traffic.step_bytes,
                rtt_ns=traffic.rtt_ns,
                mtu=traffic.mtu,
                tenants=traffic.tenants,
            )
        )
    if paths is not None:
        spec.paths = _PATHS[paths]
    if followers is not None:
        spec.followers = _FOLLOWERS[followers]
    return spec


def marker_overrides(
    *,
    k: float | None = None,
    tau: Fraction | None = None,
    t_win_us: int | None = None,
    n_sample: int | None = None,
    n_warmup: int | None = None,
    alpha_max: int | None = None,
    q_gate: int | None = None,
    step_bits: int | None = None,
    job_bits: int | None = None,
    mode: ProgressMode | None = None,
    packets_per_step: int | None = None,
    enabled: bool | None = None,
    scope: Scope | None = None,
) -> jobs_pb2.MarkerOverrides:
    """Return the message that changes marker parameters; what is None is left as it is.

    ``q_gate``: in packets; :data:`Q_GATE_OFF` switches the gate off.

    Raises:
        ValueError: a number does not fit its protobuf field.
    """
    overrides = jobs_pb2.MarkerOverrides(
        k=k,
        t_win_us=t_win_us,
        n_sample=n_sample,
        n_warmup=n_warmup,
        alpha_max=alpha_max,
        q_gate=q_gate,
        step_bits=step_bits,
        job_bits=job_bits,
        packets_per_step=packets_per_step,
        enabled=enabled,
    )
    if tau is not None:
        overrides.tau.CopyFrom(jobs_pb2.Fraction(num=tau.numerator, den=tau.denominator))
    if mode is not None:
        overrides.mode = MODE_VALUES[mode]
    if scope is not None:
        overrides.scope = SCOPE_VALUES[scope]
    return overrides


def _rings(
    rings: list[list[str]], channels: Sequence[int], rails: Sequence[str]
) -> list[jobs_pb2.Ring]:
    for what, values in (("channels", channels), ("rails", rails)):
        if len(values) > len(rings):
            raise ValueError(
                f"{len(values)} {what}, but {len(rings)} rings; give one per ring, in their order"
            )
    messages = [jobs_pb2.Ring(hosts=ring) for ring in rings]
    # Shorter lists are allowed: what is not said of a ring keeps its default.
    for message, count in zip(messages, channels, strict=False):
        message.channels = count
    for message, rail in zip(messages, rails, strict=False):
        message.rail = rail
    return messages
