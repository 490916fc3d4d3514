"""What a job asks for: ring, match kind and marker parameters, checked.

A :class:`JobSpec` is what the rest of the controller works with; the protobuf message is only how
it travels and how it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.model import Topology
from ringstep.fabric.rings import Edge, ring_edges
from ringstep.protocol.limits import K_FRACTION_BITS, STEP_BITS_MAX
from ringstep.protocol.marker import (
    DEFAULT_PROFILE,
    PROFILES,
    MarkerParams,
    ProgressMode,
    Scope,
    k_fixed,
)
from ringstep.protocol.tag import JobCarrier, TagLayout
from ringstep.protocol.uec import JOB_ID_BITS

NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]{0,62}\Z")
MAX_REQUEST_ID = 128
MAX_UEC_JOB_IDS = 256
MAX_EDGES = 65536
"""Bound on the edges of one job, so that one request cannot occupy the controller."""
PERSISTENT = "persistent"
"""Sender with one connection per neighbour, as the advice calls it."""
QP_PER_STEP = "qp_per_step"
"""Sender with a queue pair or source port per step."""
MAX_LEASE_S = 365 * 86400
MAX_CHANNELS = 1024
T = TypeVar("T")
_NO_GATE = -1
_QP_BITS = 24


class SpecError(ValueError):
    """A job that cannot be registered as asked: ``field`` and what would be right."""

    def __init__(self, field: str, text: str) -> None:
        self.field = field
        super().__init__(f"{field}: {text}")


class MatchKind(StrEnum):
    """How a switch finds the job of a packet."""

    DST_QP = "dst_qp"
    PAIR = "pair"
    TAG = "tag"
    UEC = "uec"


class Marking(StrEnum):
    """Whether switches mark a job's packets when it starts."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class PathsChoice(StrEnum):
    """How a job's packets find their way."""

    AUTO = "auto"
    PLANNED = "planned"
    ECMP = "ecmp"


class Followers(StrEnum):
    """Which switches of a job's paths hold its parameters and state blocks."""

    EVERYWHERE = "everywhere"
    TOR = "tor"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a topology file does not tell of a job and its hosts; empty or 0: not known."""

    sender: str = ""
    preset: str = ""
    step_bytes: int = 0
    rtt_ns: int = 0
    mtu: int = 0
    tenants: bool = False


@dataclass(frozen=True, slots=True, order=True)
class QueuePair:
    """One connection: ``src`` sends to ``dst``, whose QP is ``dest_qp``."""

    src: str
    dst: str
    dest_qp: int

    def __str__(self) -> str:
        return f"{self.src}->{self.dst}:{self.dest_qp}"


@dataclass(frozen=True, slots=True)
class Tag:
    """A job tag in a header field."""

    carrier: JobCarrier
    value: int


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A checked job; ``params.generation`` is a placeholder until a Job_ID is given.

    With :attr:`Marking.AUTO` ``params`` do not mark: :mod:`ringstep.controller.marking` decides.
    """

    name: str
    rings: tuple[tuple[str, ...], ...]
    queue_pairs: tuple[QueuePair, ...]
    match: MatchKind
    tag: Tag | None
    profile: str
    scope: Scope
    params: MarkerParams
    uec_job_ids: tuple[int, ...] = ()
    """JobIDs of the job's Ultra Ethernet packets, ascending; only with :attr:`MatchKind.UEC`."""
    marking: Marking = Marking.AUTO
    traffic: Traffic = Traffic()
    tenant: str = ""
    """Who the job counts for; empty: left to the caller's token."""
    paths: PathsChoice = PathsChoice.AUTO
    followers: Followers = Followers.EVERYWHERE
    lease_s: int = 0
    """0: left to the controller's configuration."""
    channels: tuple[int, ...] = ()
    """Channels per ring, in the order of ``rings``; an absent one counts as 1."""

    @property
    def planned(self) -> bool:
        """Whether edges between racks are pinned to paths of their own.

        Only a rule that names one edge can pin it, and a sender with a queue pair per step loses
        by a path that stays (docs/planning.md).
        """
        pinnable = self.match in {MatchKind.DST_QP, MatchKind.PAIR}
        if self.paths is PathsChoice.AUTO:
            return pinnable and self.traffic.sender != QP_PER_STEP
        return pinnable and self.paths is PathsChoice.PLANNED

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The directed edges whose traffic is the job's, each once.

        With rules on QPs these are the connections; otherwise the ring edges, and the ends of
        connections that are no ring edge.
        """
        edges: dict[Edge, None] = {}
        if self.match is not MatchKind.DST_QP:
            edges.update(dict.fromkeys(ring_edges(self.rings)))
        edges.update({Edge(pair.src, pair.dst): None for pair in self.queue_pairs})
        return tuple(edges)


# The words of the API and what they mean here; senders turn them around.
MATCH_KINDS = {
    jobs_pb2.MATCH_KIND_DST_QP: MatchKind.DST_QP,
    jobs_pb2.MATCH_KIND_PAIR: MatchKind.PAIR,
    jobs_pb2.MATCH_KIND_TAG: MatchKind.TAG,
    jobs_pb2.MATCH_KIND_UEC: MatchKind.UEC,
}
MARKING_CHOICES = {
    jobs_pb2.MARKING_CHOICE_AUTO: Marking.AUTO,
    jobs_pb2.MARKING_CHOICE_ON: Marking.ON,
    jobs_pb2.MARKING_CHOICE_OFF: Marking.OFF,
}
PATHS_CHOICES = {
    jobs_pb2.PATHS_CHOICE_UNSPECIFIED: PathsChoice.AUTO,
    jobs_pb2.PATHS_CHOICE_PLANNED: PathsChoice.PLANNED,
    jobs_pb2.PATHS_CHOICE_ECMP: PathsChoice.ECMP,
}
FOLLOWERS = {
    jobs_pb2.FOLLOWERS_UNSPECIFIED: Followers.EVERYWHERE,
    jobs_pb2.FOLLOWERS_EVERYWHERE: Followers.EVERYWHERE,
    jobs_pb2.FOLLOWERS_TOR: Followers.TOR,
}
CARRIERS = {
    jobs_pb2.TAG_CARRIER_SPORT: JobCarrier.SPORT,
    jobs_pb2.TAG_CARRIER_RESV6A: JobCarrier.RESV6A,
    jobs_pb2.TAG_CARRIER_DSCP: JobCarrier.DSCP,
}
PROGRESS_MODES = {
    jobs_pb2.PROGRESS_MODE_PER_STEP: ProgressMode.PER_STEP,
    jobs_pb2.PROGRESS_MODE_ANCHORED: ProgressMode.ANCHORED,
}
SCOPES = {jobs_pb2.SCOPE_SWITCH: Scope.SWITCH, jobs_pb2.SCOPE_PORT: Scope.PORT}
MODE_VALUES = {mode: value for value, mode in PROGRESS_MODES.items()}
SCOPE_VALUES = {scope: value for value, scope in SCOPES.items()}
MARKING_VALUES = {marking: value for value, marking in MARKING_CHOICES.items()}


def spec_from_proto(message: jobs_pb2.JobSpec) -> JobSpec:
    """Return the checked job of a message; what needs a topology is left to :func:`check_hosts`.

    Raises:
        SpecError: a field is missing or out of range.
    """
    if not NAME.match(message.name):
        raise SpecError(
            "spec.name",
            f"{message.name!r} is not a job name; start with a letter, then letters, digits, "
            "'_', '-' or '.', at most 63 characters",
        )
    rings = tuple(tuple(ring.hosts) for ring in message.rings)
    queue_pairs = tuple(
        _queue_pair(index, pair) for index, pair in enumerate(message.queue_pairs, start=1)
    )
    if not rings and not queue_pairs:
        raise SpecError(
            "spec.rings", "empty, and so is queue_pairs; give the hosts of a ring in ring order"
        )
    if sum(len(ring) for ring in rings) + len(queue_pairs) > MAX_EDGES:
        raise SpecError("spec.rings", f"more than {MAX_EDGES} edges; split the job")
    for index, ring in enumerate(rings, start=1):
        try:
            ring_edges([ring])
        except ValueError as error:
            raise SpecError(f"spec.rings[{index}].hosts", str(error)) from None
    match = _match_kind(message, queue_pairs)
    if match is MatchKind.DST_QP:
        _check_receivers(queue_pairs)
    profile = message.profile or DEFAULT_PROFILE
    if profile not in PROFILES:
        raise SpecError(
            "spec.profile", f"{profile!r} is not a profile; use one of {', '.join(PROFILES)}"
        )
    scope, params = _marker(profile, message.overrides)
    marking = _marking(message)
    if (
        message.traffic.sender == PERSISTENT
        and message.overrides.mode == jobs_pb2.PROGRESS_MODE_UNSPECIFIED
    ):
        # Its PSNs do not start anew with a step.
        params = replace(params, mode=ProgressMode.ANCHORED)
    return JobSpec(
        name=message.name,
        rings=rings,
        queue_pairs=queue_pairs,
        match=match,
        tag=_tag(message, match, params.layout),
        profile=profile,
        scope=scope,
        params=with_marking(params, enabled=marking is Marking.ON),
        uec_job_ids=_uec_job_ids(message, match),
        marking=marking,
        traffic=_traffic(message.traffic),
        tenant=_tenant(message.tenant),
        paths=_paths(message, match),
        followers=_followers(message),
        lease_s=lease_from(message.lease_s, "spec.lease_s"),
        channels=_channels(message),
    )


def with_marking(params: MarkerParams, *, enabled: bool) -> MarkerParams:
    """Return parameters that mark, or do not."""
    return params if params.enabled == enabled else replace(params, enabled=enabled)


def request_id_from(text: str) -> str:
    """Return a request id that can be stored.

    Raises:
        SpecError: too long, or with characters that cannot be printed.
    """
    if len(text) > MAX_REQUEST_ID:
        raise SpecError("request_id", f"{len(text)} characters; use at most {MAX_REQUEST_ID}")
    if not text.isprintable():
        raise SpecError(
            "request_id",
            f"{text!r} has characters that cannot be printed; use letters, digits and "
            "punctuation, such as a UUID",
        )
    return text


def _tenant(name: str) -> str:
    if name and not NAME.match(name):
        raise SpecError("spec.tenant", f"{name!r} is not a tenant's name, such as research")
    return name


def _paths(message: jobs_pb2.JobSpec, match: MatchKind) -> PathsChoice:
    choice = PATHS_CHOICES.get(message.paths)
    if choice is None:
        raise SpecError("spec.paths", f"{message.paths}: use PLANNED or ECMP")
    if choice is PathsChoice.PLANNED and match not in {MatchKind.DST_QP, MatchKind.PAIR}:
        raise SpecError(
            "spec.paths",
            f"PLANNED, but match is {match.name}: one rule finds the packets of all edges, and "
            "cannot pin each to a path of its own; match by PAIR or DST_QP, or take ECMP",
        )
    return choice


def _followers(message: jobs_pb2.JobSpec) -> Followers:
    followers = FOLLOWERS.get(message.followers)
    if followers is None:
        raise SpecError("spec.followers", f"{message.followers}: use EVERYWHERE or TOR")
    return followers


def lease_from(seconds: int, field: str) -> int:
    """Return a lease in seconds; 0 means that none was asked for.

    Raises:
        SpecError: longer than a year.
    """
    if seconds > MAX_LEASE_S:
        raise SpecError(field, f"{seconds}: must be at most {MAX_LEASE_S}, a year, in seconds")
    return seconds


def _channels(message: jobs_pb2.JobSpec) -> tuple[int, ...]:
    for index, ring in enumerate(message.rings, start=1):
        if ring.channels > MAX_CHANNELS:
            raise SpecError(
                f"spec.rings[{index}].channels", f"{ring.channels}: use at most {MAX_CHANNELS}"
            )
        if ring.rail and not NAME.match(ring.rail):
            raise SpecError(f"spec.rings[{index}].rail", f"{ring.rail!r} is not a name")
    return tuple(ring.channels or 1 for ring in message.rings)


def _marking(message: jobs_pb2.JobSpec) -> Marking:
    enabled = message.overrides.enabled if message.overrides.HasField("enabled") else None
    if message.marking == jobs_pb2.MARKING_CHOICE_UNSPECIFIED:
        if enabled is None:
            return Marking.AUTO
        return Marking.ON if enabled else Marking.OFF
    marking = MARKING_CHOICES.get(message.marking)
    if marking is None:
        raise SpecError("spec.marking", f"{message.marking}: use AUTO, ON or OFF")
    if enabled is not None and marking is not (Marking.ON if enabled else Marking.OFF):
        raise SpecError(
            "spec.overrides.enabled", f"{enabled}, but marking is {marking.name}; give one of them"
        )
    return marking


def _traffic(message: jobs_pb2.Traffic) -> Traffic:
    for name in ("sender", "preset"):
        value = getattr(message, name)
        if value and not NAME.match(value):
            raise SpecError(f"spec.traffic.{name}", f"{value!r} is not a name, such as connectx")
    return Traffic(
        sender=message.sender,
        preset=message.preset,
        step_bytes=message.step_bytes,
        rtt_ns=message.rtt_ns,
        mtu=message.mtu,
        tenants=message.tenants,
    )


def _queue_pair(index: int, pair: jobs_pb2.QueuePair) -> QueuePair:
    field = f"spec.queue_pairs[{index}]"
    for end in ("src", "dst"):
        if not getattr(pair, end):
            raise SpecError(f"{field}.{end}", "empty; give the name of a host")
    if pair.src == pair.dst:
        raise SpecError(f"{field}.dst", f"{pair.dst!r} is also src; a connection has two ends")
    if not 0 < pair.dest_qp < 1 << _QP_BITS:
        raise SpecError(f"{field}.dest_qp", f"{pair.dest_qp}: must be in 1..{(1 << _QP_BITS) - 1}")
    return QueuePair(pair.src, pair.dst, pair.dest_qp)


def _check_receivers(pairs: Sequence[QueuePair]) -> None:
    """Check that no queue pair receives from two hosts: its one rule could follow one path only."""
    first: dict[tuple[str, int], tuple[int, str]] = {}
    for index, pair in enumerate(pairs, start=1):
        position, src = first.setdefault((pair.dst, pair.dest_qp), (index, pair.src))
        if src != pair.src:
            raise SpecError(
                f"spec.queue_pairs[{index}]",
                f"{pair}, but queue_pairs[{position}] says that queue pair {pair.dest_qp} of "
                f"{pair.dst} receives from {src}; a connection has one sender, give each its own "
                "dest_qp",
            )


def _match_kind(message: jobs_pb2.JobSpec, queue_pairs: Sequence[QueuePair]) -> MatchKind:
    if message.match == jobs_pb2.MATCH_KIND_UNSPECIFIED:
        if message.HasField("tag"):
            return MatchKind.TAG
        if message.uec_job_ids:
            return MatchKind.UEC
        return MatchKind.DST_QP if queue_pairs else MatchKind.PAIR
    match = MATCH_KINDS.get(message.match)
    if match is None:
        raise SpecError("spec.match", f"{message.match}: use DST_QP, PAIR, TAG or UEC")
    if match is MatchKind.DST_QP and not queue_pairs:
        raise SpecError(
            "spec.queue_pairs",
            "empty, but match is DST_QP; give (src, dst, dest_qp) of every connection, or match "
            "by PAIR",
        )
    return match


def _tag(message: jobs_pb2.JobSpec, match: MatchKind, layout: TagLayout) -> Tag | None:
    if match is not MatchKind.TAG:
        if message.HasField("tag"):
            raise SpecError("spec.tag", f"set, but match is {match.name}; use match TAG")
        return None
    carrier = CARRIERS.get(message.tag.carrier)
    if carrier is None:
        raise SpecError("spec.tag.carrier", "not set; use SPORT, RESV6A or DSCP")
    if carrier is JobCarrier.SPORT:
        if layout.job_bits == 0:
            raise SpecError(
                "spec.overrides.job_bits",
                "0, but the tag travels in the source port; give the bits of the job tag",
            )
        low, high = 0, (1 << layout.job_bits) - 1
    else:
        low, high = 1, 63
    if not low <= message.tag.value <= high:
        raise SpecError("spec.tag.value", f"{message.tag.value}: must be in {low}..{high}")
    return Tag(carrier, message.tag.value)


def _uec_job_ids(message: jobs_pb2.JobSpec, match: MatchKind) -> tuple[int, ...]:
    field = "spec.uec_job_ids"
    if match is not MatchKind.UEC:
        if message.uec_job_ids:
            raise SpecError(field, f"set, but match is {match.name}; use match UEC")
        return ()
    if not message.uec_job_ids:
        raise SpecError(field, "empty, but match is UEC; give the JobID of the job's packets")
    if message.queue_pairs:
        raise SpecError(
            "spec.queue_pairs", "set, but match is UEC, which has no queue pairs; give rings"
        )
    if len(message.uec_job_ids) > MAX_UEC_JOB_IDS:
        raise SpecError(field, f"{len(message.uec_job_ids)}: use at most {MAX_UEC_JOB_IDS}")
    for index, value in enumerate(message.uec_job_ids, start=1):
        if not 0 <= value < 1 << JOB_ID_BITS:
            raise SpecError(f"{field}[{index}]", f"{value}: must be in 0..{(1 << JOB_ID_BITS) - 1}")
    return tuple(sorted(set(message.uec_job_ids)))


def changed_params(spec: JobSpec, changes: jobs_pb2.MarkerOverrides) -> JobSpec:
    """Return the job with marker parameters changed that may change while it lives.

    Raises:
        SpecError: a value is out of range, nothing changes, or a field cannot change.
    """
    for name in ("step_bits", "job_bits"):
        if changes.HasField(name):
            raise SpecError(
                f"changes.{name}",
                "the tag layout cannot change while the job lives: packets under way carry the old "
                "one; release the job and register it anew",
            )
    if changes.scope != jobs_pb2.SCOPE_UNSPECIFIED:
        raise SpecError(
            "changes.scope",
            "state blocks are placed when a job comes; release the job and register it anew",
        )
    if not changes.ListFields():
        raise SpecError("changes", "empty; set the parameters that are to change")
    try:
        params = _overridden(spec.params, changes)
        if changes.HasField("enabled"):
            params = replace(params, enabled=changes.enabled)
    except SpecError as error:
        raise SpecError(
            error.field.replace("spec.overrides", "changes"),
            str(error).removeprefix(f"{error.field}: "),
        ) from None
    return replace(spec, params=params)


def _marker(profile: str, overrides: jobs_pb2.MarkerOverrides) -> tuple[Scope, MarkerParams]:
    base = PROFILES[profile]
    scope = base.scope
    if not overrides.ByteSize():
        return scope, base.params
    params = _overridden(base.params, overrides)
    layout = _layout(params.layout, overrides)
    if layout != params.layout:
        params = replace(params, layout=layout)
    if overrides.scope != jobs_pb2.SCOPE_UNSPECIFIED:
        chosen = SCOPES.get(overrides.scope)
        if chosen is None:
            raise SpecError("spec.overrides.scope", f"{overrides.scope}: use SWITCH or PORT")
        scope = chosen
    return scope, params


def _overridden(params: MarkerParams, overrides: jobs_pb2.MarkerOverrides) -> MarkerParams:
    for name in ("n_sample", "n_warmup", "alpha_max", "packets_per_step"):
        if overrides.HasField(name):
            params = _with(params, name, **{name: getattr(overrides, name)})
    if overrides.HasField("t_win_us"):
        params = _with(params, "t_win_us", t_win=overrides.t_win_us)
    if overrides.HasField("k"):
        params = _with(params, "k", k=_checked("k", lambda: k_fixed(overrides.k)))
    if overrides.HasField("tau"):
        params = _with(params, "tau", tau_den=overrides.tau.den, tau_num=overrides.tau.num)
    if overrides.HasField("q_gate"):
        gate = None if overrides.q_gate == _NO_GATE else overrides.q_gate
        params = _with(params, "q_gate", q_gate=gate)
    if overrides.mode != jobs_pb2.PROGRESS_MODE_UNSPECIFIED:
        mode = PROGRESS_MODES.get(overrides.mode)
        if mode is None:
            raise SpecError("spec.overrides.mode", f"{overrides.mode}: use PER_STEP or ANCHORED")
        params = replace(params, mode=mode)
    return params


def _layout(layout: TagLayout, overrides: jobs_pb2.MarkerOverrides) -> TagLayout:
    has_job, has_step = overrides.HasField("job_bits"), overrides.HasField("step_bits")
    if not has_job and not has_step:
        return layout
    job_bits = overrides.job_bits if has_job else STEP_BITS_MAX - overrides.step_bits
    step_bits = overrides.step_bits if has_step else STEP_BITS_MAX - overrides.job_bits
    field = "step_bits" if has_step else "job_bits"
    return _checked(field, lambda: TagLayout(job_bits, step_bits))


def _with(params: MarkerParams, field: str, **changes: int | None) -> MarkerParams:
    return _checked(field, lambda: replace(params, **changes))  # type: ignore[arg-type]


def _checked(field: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except ValueError as error:
        raise SpecError(f"spec.overrides.{field}", str(error)) from None


def check_hosts(spec: JobSpec, topology: Topology) -> None:
    """Check that every host of a job is in the topology and can reach its successor by address.

    Raises:
        SpecError: an unknown host, or two ends without a common address family.
    """
    for index, ring in enumerate(spec.rings, start=1):
        _check_known(f"spec.rings[{index}].hosts", ring, topology)
    for index, pair in enumerate(spec.queue_pairs, start=1):
        _check_known(f"spec.queue_pairs[{index}].src", [pair.src], topology)
        _check_known(f"spec.queue_pairs[{index}].dst", [pair.dst], topology)
    for edge in spec.edges:
        src, dst = topology.hosts[edge.src], topology.hosts[edge.dst]
        if not {ip.version for ip in src.ips} & {ip.version for ip in dst.ips}:
            raise SpecError(
                "spec.rings",
                f"{edge}: the two hosts have no common address family; give both an IPv4 or both "
                "an IPv6 address in the topology",
            )


def _check_known(field: str, hosts: Iterable[str], topology: Topology) -> None:
    for host in hosts:
        if host not in topology.hosts:
            raise SpecError(
                field,
                f"host {host!r} is not in the topology; known hosts: {_some(topology.hosts)}",
            )


def _some(names: Iterable[str], limit: int = 20) -> str:
    names = list(names)
    shown = ", ".join(names[:limit]) or "none"
    return f"{shown}, and {len(names) - limit} more" if len(names) > limit else shown


def params_to_proto(params: MarkerParams, scope: Scope) -> jobs_pb2.MarkerParameters:
    """Return marker parameters as they travel and are stored."""
    return jobs_pb2.MarkerParameters(
        k=params.k / (1 << K_FRACTION_BITS),
        tau=jobs_pb2.Fraction(num=params.tau_num, den=params.tau_den),
        t_win_us=params.t_win,
        n_sample=params.n_sample,
        n_warmup=params.n_warmup,
        alpha_max=params.alpha_max,
        q_gate=_NO_GATE if params.q_gate is None else params.q_gate,
        step_bits=params.layout.step_bits,
        job_bits=params.layout.job_bits,
        mode=MODE_VALUES[params.mode],
        packets_per_step=params.packets_per_step,
        enabled=params.enabled,
        scope=SCOPE_VALUES[scope],
    )


def params_from_proto(
    message: jobs_pb2.MarkerParameters, generation: int
) -> tuple[Scope, MarkerParams]:
    """Return stored marker parameters, with the generation of the job's Job_ID.

    Raises:
        ValueError: the message does not come from :func:`params_to_proto`.
    """
    params = MarkerParams(
        k=k_fixed(message.k),
        tau_num=message.tau.num,
        tau_den=message.tau.den,
        t_win=message.t_win_us,
        n_sample=message.n_sample,
        n_warmup=message.n_warmup,
        alpha_max=message.alpha_max,
        q_gate=None if message.q_gate == _NO_GATE else message.q_gate,
        layout=TagLayout(message.job_bits, message.step_bits),
        mode=PROGRESS_MODES[message.mode],
        packets_per_step=message.packets_per_step,
        enabled=message.enabled,
        generation=generation,
    )
    return SCOPES[message.scope], params


def parse_tau(text: str) -> Fraction:
    """Return ``"1/4"`` or ``"0.25"`` as a fraction of two numbers up to 255.

    Raises:
        ValueError: not a fraction in 0..1.
    """
    try:
        tau = Fraction(text).limit_denominator(255)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a fraction; write 1/4 or 0.25") from None
    if not 0 <= tau <= 1:
        raise ValueError(f"{text!r} is outside 0..1; the paper uses 1/4")
    return tau
