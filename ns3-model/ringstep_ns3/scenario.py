"""A scenario: fabric, transport, switches, marker, jobs, disturbances and what to record.

Every table of a scenario file is a class here and every key an attribute; unknown keys are refused.
What the paper (Symphony, arXiv:2604.16880) leaves open is a named key with a default, and the
effective configuration written beside each result holds all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PrivateAttr

from ringstep.fabric.tomlfile import FileError, TomlTable, read_text
from ringstep.protocol.loop import LoopParams
from ringstep.protocol.red import MARK_GAP_MAX
from ringstep_ns3.tomldoc import (
    Document,
    Findings,
    Layer,
    build,
    dump,
    parse_layer,
    parse_setting,
    read_layer,
)
from ringstep_ns3.units import (
    AutoCount,
    AutoLinkRate,
    AutoRate,
    AutoSize,
    AutoTime,
    AutoWhole,
    Bytes,
    Count,
    Duration,
    LinkRate,
    Loss,
    Mtu,
    Name,
    OffCount,
    OffSize,
    OffTime,
    Oversubscription,
    Positive,
    Rate,
    Ratio,
    Share,
    Size,
    Time,
    UnlimitedSize,
    Whole,
    format_size,
    format_time,
    parse_duration,
    parse_size,
)

FORMAT: Final = 1
"""Version of the scenario format; part of every content hash."""

EXAMPLES: Final[Mapping[str, str]] = {
    "fabric": '[fabric] with kind = "leaf_spine"',
    "kind": 'kind = "leaf_spine"',
    "leaves": "leaves = 4",
    "spines": "spines = 4",
    "pods": "pods = 2",
    "hosts_per_leaf": "hosts_per_leaf = 8",
    "rate": 'rate = "10G"',
    "hosts": 'hosts = ["h1", "h2"]',
    "a": 'a = "h1"',
    "b": 'b = "s1"',
    "link": 'link = "tor0-spine0"',
    "at": 'at = "5ms"',
    "action": 'action = "fail"',
    "path": 'path = "topology.toml"',
    "load": "load = 0.3",
    "stop": 'stop = "10ms"',
    "size": 'size = "1MiB"',
    "interval": 'interval = "1ms"',
    "rank": "rank = 0",
    "factor": "factor = 1.13",
    "k_min": 'k_min = "50KB"',
    "k_max": 'k_max = "100KB"',
    "p_max": "p_max = 0.2",
    "on": 'on = "1ms"',
    "off": 'off = "1ms"',
    "src": 'src = "h0"',
    "dst": 'dst = "h1"',
    "source": 'source = "vgg16"',
}


class ScenarioError(FileError):
    """A scenario that cannot be used; ``problems`` holds one line per mistake."""


def _names(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f'{value!r} is not a list of names; write ["h0", "h1"]')
    return tuple(items)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


def _options(value: object) -> object:
    for key, item in value.items() if isinstance(value, dict) else ():
        if not isinstance(item, (bool, int, float, str)):
            raise ValueError(f"{key} = {item!r} is not plain; write a number, text, true or false")
    return value


Options = Annotated[dict[str, Any], BeforeValidator(_options)]
"""Keys that another part of the program knows: plain values."""

# --- Fabric -----------------------------------------------------------------------------------


class LeafSpine(TomlTable):
    """``[fabric] kind = "leaf_spine"``: hosts ``h0..``, ToRs ``tor0..``, spines ``spine0..``.

    Host h hangs off ToR h // hosts_per_leaf.
    """

    kind: Literal["leaf_spine"]
    leaves: Count
    spines: Count
    hosts_per_leaf: Count
    rate: LinkRate
    """Rate of host links."""
    uplink_rate: AutoLinkRate = None
    """Rate of links between switches; ``auto``: as ``rate``."""
    delay: Time = 1000
    """Propagation delay of every link, one way."""
    uplink_delay: AutoTime = None
    """The same between switches; ``auto``: as ``delay``."""
    parallel: Count = 1
    """Links between each ToR and each spine."""
    loss: Loss = 0.0
    """Chance that a link loses a packet, in either direction."""


class MultiPod(TomlTable):
    """``[fabric] kind = "multi_pod"``: pods of leaf-spine, joined by cores.

    Spine i of every pod joins the cores of plane i. Of ``oversubscription``, ``cores_per_spine``
    and ``core_rate``, what is ``auto`` follows from the others.
    """

    kind: Literal["multi_pod"]
    pods: Count
    leaves: Count
    """ToRs per pod."""
    spines: Count
    """Spines per pod."""
    hosts_per_leaf: Count
    rate: LinkRate
    uplink_rate: AutoLinkRate = None
    core_rate: AutoLinkRate = None
    """Rate of links to the cores; ``auto``: as ``uplink_rate``, or what ``oversubscription`` asks
    for where ``cores_per_spine`` is given."""
    cores_per_spine: AutoCount = None
    oversubscription: Oversubscription = None
    """Rate out of a pod against rate from below, such as ``"1:4"``; ``auto``: as it comes out."""
    oversubscription_of: Literal["hosts", "leaf_uplinks"] = "hosts"
    """What "from below" is: the pod's hosts, or the uplinks of its ToRs. The paper does not say."""
    delay: Time = 1000
    uplink_delay: AutoTime = None
    core_delay: AutoTime = None
    """``auto``: as ``uplink_delay``."""
    parallel: Count = 1
    loss: Loss = 0.0


class SwitchEntry(TomlTable):
    """A switch of an explicit link list."""

    name: Name
    tier: AutoWhole = None
    """0: ToR; ``auto``: counted from the hosts."""


class LinkEntry(TomlTable):
    """``[[fabric.link]]``: one or several cables between two nodes."""

    a: Name
    b: Name
    rate: LinkRate
    """From a to b."""
    rate_back: AutoLinkRate = None
    """From b to a; ``auto``: as ``rate``."""
    delay: Time = 1000
    delay_back: AutoTime = None
    loss: Loss = 0.0
    count: Count = 1
    """Parallel cables."""


class Links(TomlTable):
    """``[fabric] kind = "links"``: hosts, switches and cables one by one."""

    kind: Literal["links"]
    hosts: Names
    switches: Names = ()
    switch: tuple[SwitchEntry, ...] = ()
    """Switches whose tier matters."""
    link: tuple[LinkEntry, ...] = ()


class TopologyFile(TomlTable):
    """``[fabric] kind = "file"``: the controller's topology file. RED comes from [switch.red]."""

    kind: Literal["file"]
    path: str
    """Relative to the scenario."""
    delay: Time = 1000
    """Delay of links whose delay the file leaves at zero."""


Fabric = Annotated[LeafSpine | MultiPod | Links | TopologyFile, Field(discriminator="kind")]


class Imbalance(TomlTable):
    """``[[imbalance]]``: one hop that is worse than the others (paper, Fig. 2: 1.13x)."""

    link: str
    """``tor0-spine1``, ``tor0-spine1#2`` for the second of parallel cables."""
    factor: Positive
    """The hop takes this many times as long for the same traffic: its rate is divided by it."""
    direction: Literal["both", "forward", "back"] = "both"
    """``forward``: from the first name to the second."""


# --- Hosts ------------------------------------------------------------------------------------


class Transport(TomlTable):
    """``[transport]``: every host's RNIC."""

    mtu: Mtu = 1000
    """Payload of a packet."""
    header: Bytes = 48
    """Header bytes of a data packet on the wire; 36 in astra-sim's ns-3."""
    ack_size: Size = 60
    cnp_size: Size = 60
    window: Literal["none", "bdp", "variable"] = "none"
    """``bdp``: at most a bandwidth-delay product in flight per QP; ``variable``: scaled by rate
    over line rate. HPCC's scripts have both, the paper does not say which."""
    window_bytes: AutoSize = None
    """``auto``: from the base RTT and the slowest link."""
    ack_interval: Count = 1
    """Packets per ACK."""
    recovery: Literal["gbn", "selective"] = "gbn"
    rto: OffTime = 67_000_000
    """Retransmission timeout; the default is that of adapters (local ACK timeout 14), and beyond
    what a full buffer takes at 10G. ``off``: a lost tail hangs the run, as in HPCC's simulator."""
    nak_interval: Time = 500_000
    """At most one NAK per expected PSN in this time."""
    nic: Literal["round_robin", "in_order"] = "round_robin"
    """``in_order``: the oldest message first, instead of one packet per QP in turn."""
    ack_priority: bool = False
    """ACK, NAK and CNP use the strict control queue instead of the data class."""
    round_to_ns: bool = False
    """Round transmission times to whole ns, as ns-3's devices do."""
    first_psn: Annotated[Whole, Field(lt=1 << 24)] = 0
    sport_base: Annotated[Whole, Field(lt=1 << 16)] = 0xC000
    """Source port of step 0. 0xC000 tags as the data plane does; 10000 as astra-sim."""
    dport: Annotated[Whole, Field(lt=1 << 16)] = 4791


def _size_or_off(value: object) -> object:
    return value if value in (None, "off") else parse_size(value)


def _size_or_off_back(value: int | str | None) -> str | None:
    return format_size(value) if isinstance(value, int) else value


def _time_or_off(value: object) -> object:
    return value if value in (None, "off") else parse_duration(value)


def _time_or_off_back(value: int | str | None) -> str | None:
    return format_time(value) if isinstance(value, int) else value


class DcqcnKeys(TomlTable):
    """``[cc.dcqcn]``: keys that replace those of the preset."""

    t_alpha: Duration | None = None
    t_dec: Duration | None = None
    t_rp: Duration | None = None
    g: Share | None = None
    f: Whole | None = None
    rate_ai: Rate | None = None
    rate_hai: Rate | None = None
    min_rate: Rate | None = None
    byte_counter: Annotated[
        int | Literal["off"] | None,
        BeforeValidator(_size_or_off),
        PlainSerializer(_size_or_off_back),
    ] = None
    clamp_target: bool | None = None
    clamp_after_time_inc: bool | None = None
    gd: Positive | None = None
    min_dec_fac: Share | None = None
    rate_on_first_cnp: Share | None = None
    initial_alpha: Share | None = None
    reaction: Literal["periodic", "per_cnp"] | None = None
    hai_scaling: bool | None = None
    cnp_interval: Annotated[
        int | Literal["off"] | None,
        BeforeValidator(_time_or_off),
        PlainSerializer(_time_or_off_back),
    ] = None
    """``off``: marks are echoed in ACKs; a time: CNPs are packets, one per QP in that time."""


class HpccKeys(TomlTable):
    """``[cc.hpcc]``: HPCC (SIGCOMM'19)."""

    eta: Share = 0.95
    max_stage: Whole = 0
    rate_ai: Rate = 20_000_000
    min_rate: Rate = 100_000_000
    multi_rate: bool = False


DCQCN_PRESETS: Final = (
    "hpcc_run",
    "hpcc_config",
    "dcqcn_paper",
    "conweave",
    "dcqcn_author",
    "sigcomm15",
    "connectx",
)


class Cc(TomlTable):
    """``[cc]``: congestion control of every sender."""

    kind: Literal["dcqcn", "hpcc", "fixed"] = "dcqcn"
    preset: Literal[
        "hpcc_run",
        "hpcc_config",
        "dcqcn_paper",
        "conweave",
        "dcqcn_author",
        "sigcomm15",
        "connectx",
    ] = "hpcc_run"
    """DCQCN parameter set, evaluated at the sender's line rate."""
    dcqcn: DcqcnKeys = DcqcnKeys()
    hpcc: HpccKeys = HpccKeys()
    fixed_rate: AutoRate = None
    """With ``kind = "fixed"``; ``auto``: line rate."""


# --- Switches ---------------------------------------------------------------------------------


class Pfc(TomlTable):
    """``[switch.pfc]``: priority flow control with a dynamic threshold."""

    enabled: bool = True
    shift: Annotated[Whole, Field(le=16)] = 3
    """Threshold = free pool >> shift."""
    reserve: Bytes = 4096
    resume_offset: Bytes = 3072
    headroom: Literal["safe", "hpcc"] = "safe"
    """``safe``: all that can still arrive after XOFF; ``hpcc``: 3 x delay x rate, can drop."""
    headroom_bytes: AutoSize = None
    """``auto``: computed per port as ``headroom`` says."""
    pause_size: Size = 64


class RedRow(TomlTable):
    """``[[switch.red.rate]]``: RED of egress ports of one rate."""

    rate: Rate
    k_min: Bytes
    k_max: Size
    p_max: Share


class RedTable(TomlTable):
    """``[switch.red]``: RED at dequeue, on bytes left in the egress queue."""

    enabled: bool = True
    profile: Literal[
        "symphony", "hpcc_run", "hpcc_config", "astra", "conweave", "dctcp", "custom"
    ] = "symphony"
    """``symphony``: 50/100 KB, 0.2 at 10G; see docs/simulator.md for the others. ``custom``: only
    the rates of [[switch.red.rate]]."""
    scaling: Literal["proportional", "none"] = "proportional"
    """``symphony`` at other rates than 10G: thresholds in proportion, or no entry."""
    rate: tuple[RedRow, ...] = ()
    """Rows go before the profile."""


def _parse_mark_gap(value: object) -> int | str:
    if value in ("auto", "off"):
        return str(value)
    ns = parse_duration(value)
    if ns % 1000 or not 0 < ns // 1000 <= MARK_GAP_MAX:
        raise ValueError(
            f'{value!r} is no gap; write whole microseconds up to {MARK_GAP_MAX}us, "off" or "auto"'
        )
    return ns


class SwitchTable(TomlTable):
    """``[switch]``: every switch of the fabric."""

    buffer: UnlimitedSize = 32 * 1024 * 1024
    """Shared buffer; ``unlimited``: neither drops nor PFC."""
    pfc: Pfc = Pfc()
    red: RedTable = RedTable()
    lb: Literal["ecmp", "planned", "flowlet", "spray", "least_loaded"] = "ecmp"
    """``planned``: ring edges pinned by ringstep.fabric's planner, ECMP for the rest;
    ``least_loaded``: each message at each switch by the next hop with the least to send."""
    plan: Literal["auto", "edge", "step"] = "auto"
    """What ``planned`` pins: one path per ring edge, or the paths of an edge in turn, a step each.
    ``auto``: ``step`` for jobs whose steps have queue pairs and source ports of their own
    (``qp_per_step`` or ``qp_pool`` with ``per_step`` ports), else ``edge``: a connection that
    changed its path would see its packets reordered."""
    flowlet_gap: Duration = 50_000
    load_horizon: Time = 80_000
    """``least_loaded``: a message that is still to come counts with as much as is sent in this
    time, at most; without a limit steps would flee a long flow as if it took all of the link."""
    ecmp_hash: Literal["seeded", "ns3_compat"] = "seeded"
    """``ns3_compat``: seeded by the node number alone, so that no seed changes the paths."""
    marking: Literal["none", "marker", "priority"] = "none"
    """``priority``: strict priority for laggards, the paper's rival (4.3)."""
    marked: Names = ("all",)
    """Which switches do ``marking`` and space marks: ``all``, ``tor`` or a list of names."""
    mark_gap: Annotated[int | Literal["auto", "off"], BeforeValidator(_parse_mark_gap)] = "auto"
    """Marks on packets of ``marked`` jobs, by RED or the marker, are this far apart at each port of
    ``marked`` switches, while no more than twice RED's ``k_max`` waits there. ``auto``: 20 us where
    ``marking = "marker"`` with profile ``ringstep``, else ``off``."""
    scheduler: Literal["round_robin", "strict"] = "round_robin"


def _parse_step_bits(value: object) -> int | None:
    if value is None or value == "auto":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= 14:
        return value
    raise ValueError(f'{value!r} is not a number of step bits; write 2..14 or "auto"')


_STEP_BITS: Final = (
    BeforeValidator(_parse_step_bits),
    PlainSerializer(lambda bits: "auto" if bits is None else bits),
)


def _parse_gate(value: object) -> int | str | None:
    if value is None or value == "profile":
        return None
    if value == "off":
        return "off"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < (1 << 19) - 1:
        return value
    raise ValueError(f'{value!r} is not a gate; write packets (0..524286), "off" or "profile"')


def _parse_packets_per_step(value: object) -> int | str:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f'{value!r} is no number of packets; write a whole number from 0, or "auto"')


def _parse_cap(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"{value!r} is no cap of a probability; write one above 0, up to 1")


class TrialTable(TomlTable):
    """``[marker.trial]``: rules that were tried beside the marker; not in any data plane.

    Each is off by default, and they can be combined. A *laggard* is a packet that is not ahead of
    the block's ``step_min``.
    """

    hold: OffTime = None
    """Mark only while a packet of a laggard left the block's queue within this time."""
    min_lead: Count = 1
    """Mark only steps at least this far ahead of ``step_min``."""
    mark_gap: OffTime = None
    """At most one mark of the marker per block in this time."""
    p_max: Annotated[float, BeforeValidator(_parse_cap)] = 1.0
    """Cap of the probability of a mark."""
    relief: Literal["off", "while_ahead", "always"] = "off"
    """Laggards are spared RED below its ``k_max``: never, while packets of steps ahead left the
    block's queue within ``hold`` (where that is off, ``t_win``), or always."""
    transfer: OffCount = None
    """Marks that ``relief`` spared are put on packets ahead, in place of the marker's; so many are
    kept for later at most."""
    last_lost: Share = 0.0
    """Share of the LAST packets that the marker does not see."""


def _none_where_all_off(table: TrialTable | None) -> TrialTable | None:
    return None if table == TrialTable() else table


class MarkerTable(TomlTable):
    """``[marker]``: parameters of every job's marker; None: as the profile says."""

    profile: Literal["ringstep", "paper"] = "ringstep"
    scope: Literal["port", "switch"] | None = None
    k: Share | None = None
    tau: Ratio | None = None
    t_win: Duration | None = None
    """A whole number of microseconds."""
    n_sample: Whole | None = None
    n_warmup: Whole | None = None
    alpha_max: Annotated[Whole, Field(ge=1, le=255)] | None = None
    q_gate: Annotated[int | str | None, BeforeValidator(_parse_gate)] = None
    """Packets in the queue at dequeue, or ``off``."""
    progress: Literal["auto", "per_step", "anchored"] = "auto"
    """``auto``: ``per_step`` with a QP per step, ``anchored`` with persistent QPs."""
    packets_per_step: Annotated[int | str, BeforeValidator(_parse_packets_per_step)] = 0
    """A LAST ends the step only where progress reached this less one; 0: every LAST does; ``auto``:
    what a job's steps have where they travel as several messages, else 0."""
    step_bits: Annotated[int | None, *_STEP_BITS] = None
    """Bits of the step in the tag; ``auto``: log2(pool) where the port carries the step modulo the
    pool (``qp_pool`` with ``per_step`` ports), else 14."""
    step_wrap: Literal["refuse", "allow"] = "refuse"
    """What to do with a job that counts more steps than the tag holds."""
    generation: Annotated[Whole, Field(ge=1, le=255)] = 1
    start: Time | None = None
    """Simulated time from which the marker follows and marks, with fresh state (late start in Fig.
    4 of the paper); 0 or None: from the beginning."""
    trial: Annotated[TrialTable | None, AfterValidator(_none_where_all_off)] = None


# --- Closed loop ------------------------------------------------------------------------------

_LOOP: Final = LoopParams()


class LoopArm(TomlTable):
    """``[[loop.arm]]``: a way to run a job."""

    name: Annotated[str, Field(min_length=1)]
    planned: bool = False
    """Takes planned paths, with ``switch.lb = "planned"``; else ECMP."""
    marker: bool = False
    """The marker marks, with ``switch.marking = "marker"``; else it follows only."""
    k: Share | None = None
    """Instead of that of [marker]."""
    q_gate: Annotated[int | str | None, BeforeValidator(_parse_gate)] = None
    """Instead of that of [marker]."""


class LoopTable(TomlTable):
    """``[loop]``: per job, tries arms in epochs and keeps what proves better (docs/closed-loop.md).

    [switch] says what the fabric can do, an arm what of it a job uses. Keys from ``budget`` on are
    those of :class:`ringstep.protocol.loop.LoopParams`.
    """

    enabled: bool = False
    arm: tuple[LoopArm, ...] = (
        LoopArm(name="safe"),
        LoopArm(name="planned", planned=True),
        LoopArm(name="planned+marker", planned=True, marker=True),
        LoopArm(name="marker", marker=True),
    )
    """In order of preference, the simplest first."""
    safe: str = "safe"
    """Name of the arm that the others are measured against."""
    start: str = "safe"
    """Name of the arm in force at the start."""
    epoch: Count = 1
    """Iterations of a job per epoch."""
    budget: Share = _LOOP.budget
    startup: Count = _LOOP.startup
    """In epochs."""
    worst: Share = _LOOP.worst
    worth: Share = _LOOP.worth
    confidence: Share = _LOOP.confidence
    check: Count = _LOOP.check
    patience: Count = _LOOP.patience
    rest: Count = _LOOP.rest
    lean: Count = _LOOP.lean


# --- Jobs -------------------------------------------------------------------------------------

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send"
]


class CollectiveKeys(TomlTable):
    """Keys that describe one collective; in ``[[job]]`` itself or in ``[[job.op]]``."""

    algorithm: Literal["ring", "ring_2d", "double_binary_tree", "halving_doubling", "direct"] = (
        "ring"
    )
    size: Size | None = None
    """Buffer per rank. all_gather: the gathered result; all_to_all: all that a rank sends."""
    chunk: Size | None = None
    """Instead of ``size``: bytes per ring step, size / ring length / channels."""
    ring_size: AutoCount = None
    """Ranks per ring; ``auto``: one ring of all ranks."""
    ring_layout: Literal["strided", "contiguous"] = "strided"
    """Which ranks share a ring of ``ring_size``: every (ranks / ring_size)-th, or neighbours."""
    rings: tuple[tuple[Whole, ...], ...] = ()
    """Instead: rings of ranks, one by one."""
    channels: Count = 1
    passes: Count = 1
    """Repetitions; steps keep counting."""
    dims: tuple[Count, ...] = ()
    """``ring_2d``: (inner, outer)."""
    chunks: Count = 1
    """Pipeline depth of broadcast and trees."""
    in_flight: Whole = 0
    """all_to_all: messages in flight per rank; 0: all."""
    root: Whole = 0
    src: Whole = 0
    """``send``: sending rank."""
    dst: Whole = 1


class OpTable(CollectiveKeys):
    """``[[job.op]]``: an operation of the job's program."""

    kind: Literal[
        "compute", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send"
    ]
    name: str = ""
    """``op1``, ``op2`` ... where empty."""
    time: Time = 0
    """``compute``: how long each rank computes."""
    after: Names | None = None
    """Operations that must be done at a rank first; absent: the one before; ``[]``: none."""


class Straggler(TomlTable):
    """``[[job.straggler]]``: a rank that is late."""

    rank: Whole
    delay: Time = 0
    """Later start."""
    step_delay: Time = 0
    """Before every step that it sends."""
    compute: Positive = 1.0
    """Its compute operations take this many times as long."""


class WorkloadTable(TomlTable):
    """``[job.workload]``: a program from a file, or from a model's layer shapes."""

    source: str
    """``astra:NAME_OR_FILE``, ``chakra:PREFIX``, ``json:FILE``, or a model such as ``vgg16``; files
    relative to the scenario."""
    options: Options = Field(default_factory=dict)
    """As :class:`ringstep_ns3.workloads.WorkloadOptions` takes them."""

    @property
    def path(self) -> str:
        """The file or prefix that the source names; empty: none."""
        return self.source.partition(":")[2]


class Job(CollectiveKeys):
    """``[[job]]``: ranks on hosts and a program: one collective, ``[[job.op]]`` or a workload."""

    name: str = ""
    """``job1``, ``job2`` ... where empty."""
    copies: Count = 1
    """How many jobs like this."""
    ranks: AutoCount = None
    """``auto``: all hosts, or as many as ``hosts`` names."""
    placement: Literal["packed", "random", "striped", "explicit"] = "packed"
    """``packed``: neighbours under one ToR; ``striped``: one ToR after the other in turn;
    ``random``: by the seed; ``explicit``: as ``hosts`` lists them. ``packed``, ``striped`` and
    ``random`` take hosts that no job before has, while there are enough."""
    hosts: Names = ()
    """Candidates in this order, for ``explicit`` one per rank; empty: all hosts."""
    collective: CollectiveKind = "all_reduce"
    op: tuple[OpTable, ...] = ()
    workload: WorkloadTable | None = None
    iterations: Count = 1
    """Repetitions of the whole program."""
    compute: Time = 0
    """Computation before the collective in every iteration."""
    start: Time = 0
    arrivals: Literal["fixed", "poisson"] = "fixed"
    """Start of copies: ``interval`` apart, or at random with that mean."""
    interval: Time = 0
    jitter: Time = 0
    """Each rank starts later by a uniform random time up to this."""
    sender: Literal["qp_per_step", "persistent", "qp_pool"] = "qp_per_step"
    """``qp_per_step``: a fresh QP per step, NIC round-robin, as the paper's simulator;
    ``persistent``: steps in order on one connection, as NCCL; ``qp_pool``: ``pool`` QPs in turn."""
    pool: Count = 8
    """QPs per connection of ``qp_pool``; a power of two from 8 where the marker is to follow it."""
    port: Literal["per_step", "sticky"] = "per_step"
    """``per_step``: the source port carries the step, so ECMP hashes each step anew."""
    dependency: Literal["count", "in_order", "per_chunk"] = "in_order"
    """``count``: any arrival enables the next step, as astra-sim; ``in_order``: all up to it;
    ``per_chunk``: exactly its own."""
    notify: Literal["receiver", "sender_ack"] = "receiver"
    """Arrived: last byte at the receiver, or last ACK back at the sender (astra-sim)."""
    endpoint_delay: Time = 0
    """Between an arrival and what it sets off."""
    messages_per_step: Annotated[Count, Field(le=256)] | None = None
    """Messages in which a step of a ring travels, one after the other on its connection, each as
    soon as its like of the step before is in: NCCL's slices. None: one."""
    straggler: tuple[Straggler, ...] = ()
    marked: bool = True
    """Whether the marker knows this job."""
    priority: Annotated[Whole, Field(ge=1, le=7)] = 3
    """Data class."""
    cc: Literal[
        "default",
        "hpcc_run",
        "hpcc_config",
        "dcqcn_paper",
        "conweave",
        "dcqcn_author",
        "sigcomm15",
        "connectx",
    ] = "default"
    """Another DCQCN preset than [cc]."""


# --- Other traffic and events -----------------------------------------------------------------


class SizePoint(TomlTable):
    """A point of a size distribution: ``share`` of messages have at most ``size`` bytes."""

    size: Bytes
    share: Share


class _Background(TomlTable):
    src: Names = ("all",)
    """Sending hosts: ``all``, a ToR (its hosts) or hosts."""
    dst: Names = ("all",)
    start: Time = 0
    priority: Annotated[Whole, Field(ge=1, le=7)] = 3
    cc: Literal[
        "default",
        "line_rate",
        "hpcc_run",
        "hpcc_config",
        "dcqcn_paper",
        "conweave",
        "dcqcn_author",
        "sigcomm15",
        "connectx",
    ] = "default"
    """``line_rate``: no congestion control."""


class PoissonFlows(_Background):
    """``[[background]] kind = "poisson"``: messages at random, between random pairs."""

    kind: Literal["poisson"]
    load: Share
    """Of the line rate of each sending host, payload."""
    stop: Duration
    sizes: Literal["web_search", "fb_hadoop", "fixed", "custom"] = "web_search"
    size: Size | None = None
    """With ``sizes = "fixed"``."""
    cdf: tuple[SizePoint, ...] = ()
    """With ``sizes = "custom"``: points in ascending order, the last share 1."""


class PeriodicFlows(_Background):
    """``[[background]] kind = "periodic"``: every sender sends ``size`` each ``interval``."""

    kind: Literal["periodic"]
    size: Size
    interval: Duration
    stop: Duration


class OnOffFlows(_Background):
    """``[[background]] kind = "on_off"``: bursts at ``load`` for ``on``, silence for ``off``."""

    kind: Literal["on_off"]
    load: Share
    on: Duration
    off: Duration
    stop: Duration
    size: Size = 100_000
    """Of each message in a burst."""
    durations: Literal["fixed", "exponential"] = "fixed"


class LongFlows(_Background):
    """``[[background]] kind = "long"``: one message per sender from the start."""

    kind: Literal["long"]
    size: Size


BackgroundFlows = Annotated[
    PoissonFlows | PeriodicFlows | OnOffFlows | LongFlows, Field(discriminator="kind")
]


class Event(TomlTable):
    """``[[event]]``: something that happens to a link."""

    at: Time
    link: str
    action: Literal["fail", "restore", "degrade"]
    rate: AutoLinkRate = None
    """``degrade``: the rate from then on, both ways."""


class Drop(TomlTable):
    """``[[drop]]``: chosen packets that are lost on the wire."""

    kind: Literal["data", "ack", "cnp"] = "data"
    which: Literal["last", "nth"] = "last"
    """``last``: the last packet of a message, or the ACK of it; ``nth``: the ``n``-th match."""
    n: Count = 1
    times: Count = 1
    """At most this many."""
    src: str = "any"
    dst: str = "any"
    step: AutoWhole = None
    """``auto``: any."""
    link: str = "any"
    """Directed: ``tor0->spine1``."""


class Output(TomlTable):
    """``[output]``: what is recorded."""

    flows: bool = True
    steps: bool = True
    sample: OffTime = 1_000_000
    """Width of the windows of the link series."""
    links: Literal["fabric", "all"] = "fabric"
    """Which links have a series: those between switches, or all."""
    alpha: OffTime = None
    """Width of the windows of the marker's alpha trace."""
    queue_bin: OffSize = 10_000
    """Bin of the queue histograms."""
    rates: tuple[Names, ...] = ()
    """Pairs of hosts whose senders' rates are traced: ``[["h0", "h1"]]``."""


class Scenario(TomlTable):
    """One experiment, complete but for the seed."""

    extends: Annotated[Names, Field(exclude=True)] = ()
    """Presets and files that this scenario builds on; the last one is the strongest."""
    name: Name = "scenario"
    description: str = ""
    seed: Annotated[Whole, Field(lt=1 << 32)] = 1
    """Seed where none is given."""
    until: OffTime = None
    """Stop at this simulated time; ``off``: when everything is done."""
    fabric: Fabric
    transport: Transport = Transport()
    cc: Cc = Cc()
    switch: SwitchTable = SwitchTable()
    marker: MarkerTable = MarkerTable()
    loop: LoopTable = LoopTable()
    job: tuple[Job, ...] = ()
    background: tuple[BackgroundFlows, ...] = ()
    imbalance: tuple[Imbalance, ...] = ()
    event: tuple[Event, ...] = ()
    drop: tuple[Drop, ...] = ()
    output: Output = Output()

    _document: Document = PrivateAttr(default_factory=lambda: Document((), {}))
    _folder: Path = PrivateAttr(default_factory=Path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    @property
    def document(self) -> Document:
        """Where each value was written; empty for a scenario made in Python."""
        return self._document

    @property
    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self._folder

    def findings(self) -> Findings:
        """Return an empty collection of problems of this scenario."""
        return Findings(self._document, ScenarioError)

    @classmethod
    def load(cls, path: str | Path, settings: Sequence[str] = ()) -> Self:
        """Return the scenario of a TOML file and all that it extends.

        ``settings`` are ``key=value`` texts that go before the file. Only the file is read; whether
        it makes sense as a whole shows :func:`ringstep_ns3.prepare`.

        Raises:
            ScenarioError: it cannot be read, or holds what no scenario holds.
        """
        path = Path(path)
        first = read_layer(path, "a scenario file", ScenarioError)
        if "scenario" in first.data and "axis" in first.data:
            raise ScenarioError(
                str(path), [f"{path}: is a sweep; run it with: ringstep sim sweep {path}"]
            )
        layers = _chain(first, path.parent, (path,))
        return cls._of(layers, settings, path.parent, path.stem)

    @classmethod
    def parse(
        cls,
        text: str,
        source: str = "scenario.toml",
        folder: str | Path = ".",
        settings: Sequence[str] = (),
    ) -> Self:
        """Return the scenario of TOML text.

        Raises:
            ScenarioError: as :meth:`load`.
        """
        layers = _chain(parse_layer(text, source, ScenarioError), Path(folder), ())
        return cls._of(layers, settings, Path(folder), Path(source).stem)

    def setting(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with values at key paths, such as ``job[1].chunk``, replaced.

        Raises:
            ScenarioError: a path or a value that no scenario has.
        """
        document = self._document
        if not document.data:
            document = Document((), self.to_dict())
        try:
            for key, value in values.items():
                document = document.setting(key, value)
        except ScenarioError:
            raise
        except FileError as error:
            raise ScenarioError(error.source, error.problems) from None
        return self._from(document, self._folder)

    def to_dict(self) -> dict[str, Any]:
        """Return every key with its value as a scenario file would hold it."""
        found: dict[str, Any] = _without_none(self.model_dump(mode="python"))
        return found

    def to_toml(self, comments: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the effective configuration, every default included, as a scenario file."""
        return dump(self.to_dict(), comments)

    def content_hash(self, seed: int) -> str:
        """Return 16 hexadecimal digits that name this experiment with this seed.

        Names, descriptions and a loop that is off do not count; files that the scenario refers to
        do, by content.
        """
        content = self.to_dict()
        if not self.loop.enabled:
            content.pop("loop")
        for key in ("name", "description", "seed"):
            content.pop(key, None)
        text = json.dumps([FORMAT, content, seed, self._file_hashes()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _file_hashes(self) -> list[str]:
        paths = [job.workload.path for job in self.job if job.workload and job.workload.path]
        if isinstance(self.fabric, TopologyFile):
            paths.append(self.fabric.path)
        hashes = []
        for path in paths:
            full = self._folder / path
            found = [full] if full.is_file() else sorted(full.parent.glob(f"{full.name}*"))
            hashes += [
                hashlib.sha256(each.read_bytes()).hexdigest() for each in found if each.is_file()
            ]
        return hashes

    @classmethod
    def _of(cls, layers: Sequence[Layer], settings: Sequence[str], folder: Path, name: str) -> Self:
        document = Document.of(layers)
        try:
            for text in settings:
                document = document.setting(*parse_setting(text))
        except FileError as error:
            raise ScenarioError(error.source, error.problems) from None
        if "name" not in document.data and name:
            safe = "".join(c if c.isalnum() or c in "_.-" else "-" for c in name).lstrip("_.-")
            document = Document(
                document.layers, {"name": safe or "scenario", **document.data}, document.set_at
            )
        return cls._from(document, folder)

    @classmethod
    def _from(cls, document: Document, folder: Path) -> Self:
        data = {key: value for key, value in document.data.items() if key != "extends"}
        plain = Document(document.layers, data, document.set_at)
        scenario = build(plain, cls, EXAMPLES, ScenarioError)
        scenario._document = plain
        scenario._folder = folder
        return scenario


def preset_names() -> list[str]:
    """Return the scenario presets that ``extends`` knows, sorted."""
    folder = files("ringstep_ns3") / "presets"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def preset_text(name: str) -> str:
    """Return the TOML text of a preset.

    Raises:
        KeyError: no such preset.
    """
    if name not in preset_names():
        raise KeyError(name)
    return (files("ringstep_ns3") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def _chain(layer: Layer, folder: Path, seen: tuple[Path, ...]) -> list[Layer]:
    """A layer, then what it extends, strongest first; later entries of a list go before earlier."""
    bases = layer.data.get("extends", ())
    wanted = [bases] if isinstance(bases, str) else bases
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(base, str) for base in wanted):
        where = layer.where(("extends",))[1]
        raise ScenarioError(
            layer.source, [f'{where}: extends: write a file or a preset, such as "symphony"']
        )
    layers = [layer]
    for base in reversed(wanted):
        where = layer.where(("extends",))[1]
        if base.endswith(".toml"):
            path = folder / base
            if any(path.resolve() == each.resolve() for each in seen):
                raise ScenarioError(
                    layer.source, [f"{where}: extends: {base!r} extends itself; break the circle"]
                )
            if not path.is_file():
                raise ScenarioError(
                    layer.source,
                    [f"{where}: extends: {path} is not there; give a path from {folder}"],
                )
            text = read_text(path, "a scenario file", ScenarioError)
            below = parse_layer(text, str(path), ScenarioError)
            layers += _chain(below, path.parent, (*seen, path))
        else:
            try:
                text = preset_text(base)
            except KeyError:
                known = ", ".join(preset_names())
                raise ScenarioError(
                    layer.source,
                    [
                        f"{where}: extends: {base!r} is no preset; known: {known}; a file ends in "
                        ".toml"
                    ],
                ) from None
            below = parse_layer(text, f"preset {base}", ScenarioError)
            layers += _chain(below, folder, seen)
    return layers


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    if isinstance(value, Fraction):
        return str(value)
    return value
