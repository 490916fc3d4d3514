"""The simulator's core in C++: nodes, links, transport, switches, markers, collectives.

It knows nothing of scenario files. Units are in the names (``_ns``, ``_bps``, ``_bytes``); where a
name carries none, the docstring does. All times are simulated. Every constructor takes keywords
only, and every attribute can be read and set. Values out of range raise ``ValueError`` with the
field, the value and the range; most are checked in :class:`Simulation`, when everything is known.

Node ids count hosts and switches together, in the order of creation, from 0. A *cable* is what
``add_link`` makes; it holds two *directed links*: ``2 * cable`` from a to b and ``2 * cable + 1``
from b to a. Switch ports count from 1, in the order in which their cables were added.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[np.generic]]
"""A table: column name to a one-dimensional array; all columns have the same length."""

NO_VALUE: int
"""2**63 - 1: a time that did not come (an unfinished flow, step or job)."""

def version() -> str:
    """Return the versions of the core and of ns-3 in it.

    For example ``"ringstep-ns3 0.1.0 (sources 0f3a91cd), ns-3.44"``: the digits are a hash of the
    core's source files.
    """

# --- Congestion control -----------------------------------------------------------------------

class DcqcnParams:
    """Parameters of a DCQCN sender and of the receiver that notifies it. Times in us, rates bit/s.

    ``reaction``: ``"periodic"`` (flags and timers, as ConnectX adapters) or ``"per_cnp"`` (each CNP
    cuts at once, as the DCQCN paper). ``byte_counter_bytes`` None: increase by the timer only.
    ``cnp_interval_us`` None: marks are echoed in ACKs; a number: CNPs travel as packets, at most
    one per QP in that time. ``min_dec_fac``: share of the rate that one cut leaves at least.
    """

    def __init__(
        self,
        *,
        t_alpha_us: float = 1,
        t_dec_us: float = 4,
        t_rp_us: float = 300,
        g: float = 0.00390625,
        f: int = 1,
        rate_ai_bps: float = 2e6,
        rate_hai_bps: float = 20e6,
        min_rate_bps: float = 1e9,
        byte_counter_bytes: int | None = None,
        clamp_target: bool = False,
        clamp_after_time_inc: bool = True,
        gd: float = 2.0,
        min_dec_fac: float = 0.0,
        rate_on_first_cnp: float = 1.0,
        initial_alpha: float = 1.0,
        reaction: str = "periodic",
        hai_scaling: bool = False,
        cnp_interval_us: float | None = None,
    ) -> None: ...
    t_alpha_us: float
    t_dec_us: float
    t_rp_us: float
    g: float
    f: int
    rate_ai_bps: float
    rate_hai_bps: float
    min_rate_bps: float
    byte_counter_bytes: int | None
    clamp_target: bool
    clamp_after_time_inc: bool
    gd: float
    min_dec_fac: float
    rate_on_first_cnp: float
    initial_alpha: float
    reaction: str
    hai_scaling: bool
    cnp_interval_us: float | None

def dcqcn_preset_names() -> list[str]:
    """Return the names that :func:`dcqcn_preset` knows, sorted."""

def dcqcn_preset(name: str, link_rate_bps: float) -> DcqcnParams:
    """Return a named parameter set for a link of ``link_rate_bps``.

    Names: ``hpcc_run``, ``hpcc_config``, ``dcqcn_paper``, ``conweave``, ``dcqcn_author``,
    ``sigcomm15``, ``connectx``. Raises ValueError for another name.
    """

class ReactionPoint:
    """One DCQCN sender's rate, on its own (for golden traces); times in us on a grid of 1 ns."""

    def __init__(self, params: DcqcnParams, line_rate_bps: float) -> None: ...
    def advance(self, now_us: float) -> float:
        """Let every timer due by ``now_us`` act; return the rate in bit/s."""
    def on_cnp(self, now_us: float) -> None:
        """Take a CNP that arrives at ``now_us``."""
    def on_sent(self, wire_bytes: int, now_us: float) -> float:
        """Count bytes put on the wire; return the rate after them in bit/s."""
    @property
    def rate_bps(self) -> float: ...
    @property
    def target_bps(self) -> float: ...
    @property
    def alpha(self) -> float: ...
    @property
    def stages(self) -> tuple[int, int]: ...
    @property
    def cuts(self) -> int: ...

class HpccParams:
    """HPCC (SIGCOMM'19): target utilisation, stages of additive increase, increase and floor."""

    def __init__(
        self,
        *,
        eta: float = 0.95,
        max_stage: int = 0,
        rate_ai_bps: float = 20e6,
        min_rate_bps: float = 100e6,
        multi_rate: bool = False,
    ) -> None: ...
    eta: float
    max_stage: int
    rate_ai_bps: float
    min_rate_bps: float
    multi_rate: bool

class CcConfig:
    """Congestion control of a sender.

    ``kind``: ``"dcqcn"``, ``"hpcc"``, ``"fixed"`` (``fixed_rate_bps``; 0 = line rate). DCQCN takes
    ``preset`` (evaluated at the sender's line rate) or, where that is empty, ``dcqcn``.
    """

    def __init__(
        self,
        *,
        kind: str = "dcqcn",
        preset: str = "hpcc_run",
        dcqcn: DcqcnParams = ...,
        hpcc: HpccParams = ...,
        fixed_rate_bps: float = 0.0,
    ) -> None: ...
    kind: str
    preset: str
    dcqcn: DcqcnParams
    hpcc: HpccParams
    fixed_rate_bps: float

# --- Marker -----------------------------------------------------------------------------------

class MarkerParams:
    """Parameters of one job's marker; names and meanings as in ``ringstep.protocol.marker``.

    ``k`` is K = round(k * 2**16). ``q_gate_packets`` counts packets left in the egress queue at
    dequeue; None switches the gate off. ``t_win_us`` in us.
    """

    def __init__(
        self,
        *,
        k: int = 655,
        tau_num: int = 1,
        tau_den: int = 4,
        t_win_us: int = 100,
        n_sample: int = 8,
        n_warmup: int = 8,
        alpha_max: int = 255,
        q_gate_packets: int | None = 10,
        step_bits: int = 14,
        anchored: bool = False,
        packets_per_step: int = 0,
        enabled: bool = True,
        generation: int = 1,
    ) -> None: ...
    k: int
    tau_num: int
    tau_den: int
    t_win_us: int
    n_sample: int
    n_warmup: int
    alpha_max: int
    q_gate_packets: int | None
    step_bits: int
    anchored: bool
    packets_per_step: int
    enabled: bool
    generation: int

class Marker:
    """The marker of one job on one switch: the code that every simulated switch runs.

    ``scope``: ``"port"`` (a block per egress port) or ``"switch"`` (one block).
    """

    def __init__(self, params: MarkerParams, scope: str = "port") -> None: ...
    def on_packet(
        self,
        now_us: int,
        step: int,
        psn: int,
        last: bool,
        ect: bool,
        r: int,
        qdepth_packets: int = 0,
        red: bool = False,
        port: int = 0,
    ) -> tuple[bool, bool, int]:
        """Follow one data packet at dequeue; return (mark, ce, progress in packets).

        ``r`` is uniform in [0, 2**16); ``red`` says that RED wants the mark.
        """
    def update(self, params: MarkerParams) -> None:
        """Replace the parameters; the state stays."""
    def block(self, port: int = 0) -> dict[str, int]:
        """Return step_min, psn_rec, alpha, cnt_total, cnt_op, win_start, generation."""
    def set_block(self, port: int, block: int) -> None:
        """Let ``port`` use block number ``block``, whatever the scope."""
    def anchors(self) -> list[tuple[int, int, int]]:
        """Return the four anchors as (generation, step, base)."""
    def counters(self) -> dict[str, int]:
        """Return data, marks, red_marks, corrections, advances, in packets."""

class MarkSpacing:
    """Marks on packets of jobs at one egress port, spaced as ringstep.protocol.red says."""

    def __init__(self) -> None: ...
    def stands(self, *, now_us: int, gap_us: int, left: int, red_max: int) -> bool:
        """Say whether a mark stands, with ``left`` behind the packet in its queue.

        ``red_max`` in the unit of ``left``: the depth above which RED marks everything.
        """

class TrialRules:
    """Marker rules under trial, all off by default; they are in no data plane. Times in ns, 0: off.

    ``hold_ns``: marks only while a laggard (a packet not ahead of the block's step_min) left the
    block's queue within that time. ``min_lead``: marks only steps that many ahead, from 1.
    ``mark_gap_ns``: at most one mark per block in that time. ``p_max``: cap of the probability, in
    (0, 1]. ``relief``: laggards are spared RED up to k_max, ``"off"``, ``"while_ahead"`` (packets
    ahead left the queue within ``hold_ns``, else the marker's window) or ``"always"``.
    ``transfer``: marks so spared go to packets ahead in place of the marker's, at most so many are
    kept; 0: off. ``last_lost``: share of LAST packets that no marker sees.
    """

    def __init__(
        self,
        *,
        hold_ns: int = 0,
        min_lead: int = 1,
        mark_gap_ns: int = 0,
        p_max: float = 1.0,
        relief: str = "off",
        transfer: int = 0,
        last_lost: float = 0.0,
    ) -> None: ...
    hold_ns: int
    min_lead: int
    mark_gap_ns: int
    p_max: float
    relief: str
    transfer: int
    last_lost: float

class Trial:
    """The rules under trial of one switch, between its ports and the markers of its jobs.

    ``scope`` as of the markers. ``seed`` decides which LAST packets are lost.
    """

    def __init__(self, rules: TrialRules, scope: str = "port", seed: int = 1) -> None: ...
    def on_packet(
        self,
        marker: Marker,
        *,
        now_ns: int,
        step: int,
        psn: int,
        last: bool = False,
        ect: bool = True,
        r: int = 0,
        qdepth_packets: int = 0,
        qdepth_bytes: int = 0,
        red: bool = False,
        red_k_max_bytes: int = 0,
        port: int = 0,
        job: int = 0,
    ) -> tuple[bool, bool]:
        """Let ``marker`` follow a data packet of job number ``job``; return (mark, red).

        ``mark``: the marker's or a transferred mark; ``red``: RED's mark, where it stands.
        """

# --- Transport --------------------------------------------------------------------------------

class TransportConfig:
    """What every host's RNIC does.

    ``window``: ``"none"``, ``"bdp"`` or ``"variable"`` (BDP times rate / line rate);
    ``window_bytes`` 0: computed per QP from its base RTT and slowest link. ``recovery``: ``"gbn"``
    or ``"selective"``. ``rto_ns`` 0: no timeout (a lost tail then hangs, as in HPCC's simulator).
    ``ack_interval`` in packets; an ACK also comes for the last packet of a message, for one that
    fills the window and for one sent again; a window that varies is at least that wide. ``nic``:
    ``"round_robin"`` over QPs or ``"in_order"`` (oldest message first). ``ack_priority``: ACK, NAK
    and CNP use the strict control queue of switches instead of the data class. ``round_to_ns``:
    transmission times are rounded to whole ns (ns-3's habit) instead of ps. The source port of a
    message is ``sport_base`` + step (the step modulo 2**14 where the base is 0xC000); comparisons
    with astra-sim take 10000 and ``dport`` 100.
    """

    def __init__(
        self,
        *,
        mtu_bytes: int = 1000,
        header_bytes: int = 48,
        ack_bytes: int = 60,
        cnp_bytes: int = 60,
        cc: CcConfig = ...,
        window: str = "none",
        window_bytes: int = 0,
        ack_interval: int = 1,
        recovery: str = "gbn",
        rto_ns: int = 4_000_000,
        nak_interval_ns: int = 500_000,
        nic: str = "round_robin",
        ack_priority: bool = False,
        round_to_ns: bool = False,
        first_psn: int = 0,
        sport_base: int = 0xC000,
        dport: int = 4791,
    ) -> None: ...
    mtu_bytes: int
    header_bytes: int
    ack_bytes: int
    cnp_bytes: int
    cc: CcConfig
    window: str
    window_bytes: int
    ack_interval: int
    recovery: str
    rto_ns: int
    nak_interval_ns: int
    nic: str
    ack_priority: bool
    round_to_ns: bool
    first_psn: int
    sport_base: int
    dport: int

# --- Switches ---------------------------------------------------------------------------------

class RedEntry:
    """RED at dequeue on egress ports of one rate, on bytes left in the queue (1 KB = 1000 B)."""

    def __init__(
        self, *, rate_bps: int, k_min_bytes: int, k_max_bytes: int, p_max: float
    ) -> None: ...
    rate_bps: int
    k_min_bytes: int
    k_max_bytes: int
    p_max: float

class PfcConfig:
    """Priority flow control of a switch.

    Ingress accounting per (port, class): ``reserve_bytes``, then the shared pool up to
    ``(pool - used) >> shift`` (one less per doubling of the port's rate over the slowest host
    link), then headroom. ``headroom``: ``"safe"`` (what can still arrive after XOFF: both delays, a
    packet and the pause frames in front of it on the way back, and two packets) or ``"hpcc"`` (3 x
    delay x rate; can drop on short links); ``headroom_bytes`` > 0 overrides.
    """

    def __init__(
        self,
        *,
        enabled: bool = False,
        shift: int = 3,
        reserve_bytes: int = 4096,
        resume_offset_bytes: int = 3072,
        headroom: str = "safe",
        headroom_bytes: int = 0,
        pause_bytes: int = 64,
    ) -> None: ...
    enabled: bool
    shift: int
    reserve_bytes: int
    resume_offset_bytes: int
    headroom: str
    headroom_bytes: int
    pause_bytes: int

class SwitchConfig:
    """One switch.

    ``buffer_bytes`` 0: unlimited (no drops, no PFC). ``red``: an entry per port rate; empty: RED
    is off; a rate without an entry is refused. ``mark_gap_us``: marks on packets of known jobs are
    that far apart at each port, while no more than twice RED's ``k_max`` waits; 0: off. ``lb``:
    ``"ecmp"`` (``"planned"`` says the same), ``"flowlet"`` (gap ``flowlet_gap_ns``), ``"spray"``
    (per packet, random) or ``"least_loaded"`` (per message: at its first packet, the next hop that
    takes least time to send what it has queued and what is still to come of messages that chose
    it, ``load_horizon_ns`` of each at most; ties by hash); planned paths go before any of them.
    ``ecmp_hash``: ``"seeded"`` (by the simulation's seed and the node) or ``"ns3_compat"`` (by the
    node id only). ``marking``: ``"none"``, ``"marker"`` with ``marker_scope`` ``"port"`` or
    ``"switch"``, or ``"priority"`` (packets of the laggards' step go first, strictly).
    ``trial``: rules to try beside the marker. ``scheduler`` among data classes: ``"round_robin"``
    or ``"strict"`` (lower class first).
    """

    def __init__(
        self,
        *,
        buffer_bytes: int = 0,
        pfc: PfcConfig = ...,
        red: Sequence[RedEntry] = (),
        mark_gap_us: int = 0,
        lb: str = "ecmp",
        flowlet_gap_ns: int = 50_000,
        load_horizon_ns: int = 80_000,
        ecmp_hash: str = "seeded",
        marking: str = "none",
        marker_scope: str = "port",
        trial: TrialRules | None = None,
        scheduler: str = "round_robin",
    ) -> None: ...
    buffer_bytes: int
    pfc: PfcConfig
    red: list[RedEntry]
    mark_gap_us: int
    lb: str
    flowlet_gap_ns: int
    load_horizon_ns: int
    ecmp_hash: str
    marking: str
    marker_scope: str
    trial: TrialRules | None
    scheduler: str

# --- Network ----------------------------------------------------------------------------------

class Network:
    """Hosts, switches, cables, and what happens to them."""

    def __init__(self) -> None: ...
    def add_host(self, name: str = "") -> int:
        """Add a host; return its node id. A host does not forward; it has exactly one cable."""
    def add_switch(self, config: SwitchConfig, name: str = "", tier: int = 0) -> int:
        """Add a switch; return its node id. ``tier`` is for the reader of results (0 = ToR)."""
    def add_link(
        self,
        a: int,
        b: int,
        rate_bps: int,
        delay_ns: int,
        *,
        rate_back_bps: int = 0,
        delay_back_ns: int = -1,
        loss: float = 0.0,
    ) -> int:
        """Add a cable; return its number. ``rate_back_bps`` 0 and ``delay_back_ns`` -1: symmetric.

        ``loss`` is the chance of losing each packet in either direction. Parallel cables between
        the same pair are all used.
        """
    def add_event(self, time_ns: int, cable: int, action: str, rate_bps: int = 0) -> None:
        """Let a cable ``"fail"``, ``"restore"`` (to its first rate) or ``"degrade"`` at a time.

        ``degrade`` sets ``rate_bps`` in both directions. A failure loses what is on the wire and
        queued on it; routes are computed anew without it.
        """
    def add_drop(
        self,
        *,
        kind: str = "data",
        which: str = "last",
        n: int = 1,
        src: int = -1,
        dst: int = -1,
        step: int = -1,
        link: int = -1,
        times: int = 1,
    ) -> None:
        """Drop chosen packets on the wire.

        ``kind``: ``"data"``, ``"ack"``, ``"cnp"``; ``which``: ``"last"`` (the last packet of a
        message, or the ACK of it) or ``"nth"`` (the ``n``-th match counted from 1). -1 matches
        any. ``link`` is a directed link. Drops at most ``times`` packets in all.
        """
    def set_planned_path(
        self, src: int, dst: int, channel: int, links: Sequence[int], *, job: int = 0
    ) -> None:
        """Pin data packets from host ``src`` to ``dst`` on ``channel`` (ring index) to ``links``.

        ``links`` are directed links from the host to the host, in order. ``job`` 0: any job. A path
        more for the same edge is its next turn: step s takes path s modulo their number.
        While a link of the path is down, ECMP takes over. Raises ValueError for a broken chain.
        """
    @property
    def hosts(self) -> int: ...
    @property
    def switches(self) -> int: ...
    @property
    def cables(self) -> int: ...
    def link_ends(self, link: int) -> tuple[int, int]:
        """Return (from node, to node) of a directed link."""
    def next_hops(self, node: int, dst: int) -> list[int]:
        """Return the directed links on shortest paths from ``node`` to host ``dst``, ascending.

        Empty: unreachable.
        """

# --- Traffic ----------------------------------------------------------------------------------

class Op:
    """One operation of a job's program.

    ``kind``:

    - ``"compute"``: each rank computes for ``compute_ns`` (one number, or one per rank).
    - ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"broadcast"``, ``"all_to_all"``
      over ``bytes_``: the buffer per rank (all_gather: the gathered result; all_to_all: what a rank
      sends in all, its own part included).
    - ``"send"``: ``bytes_`` from rank ``src`` to rank ``dst``.

    ``algorithm``: ``"ring"``, ``"ring_2d"`` (``dims`` = (inner, outer)), ``"double_binary_tree"``,
    ``"halving_doubling"`` (all_reduce), ``"direct"`` (all_to_all, and the only one of ``send``).
    ``rings``: lists of ranks in ring order, disjoint; empty: one ring of all ranks. ``channels``
    repeats each ring with the bytes split. ``passes`` repeats the operation; steps keep counting.
    ``chunks``: pipeline depth of broadcast and trees. ``window``: messages in flight per rank of
    all_to_all (0: all). ``after``: indices of operations that must be done *at a rank* before
    the rank starts this one. Ranks outside the operation pass it at once.

    Step tags: each message carries the step index within the operation plus the number of steps of
    all operations before it in the program.
    """

    def __init__(
        self,
        *,
        kind: str,
        bytes_: int = 0,
        algorithm: str = "ring",
        rings: Sequence[Sequence[int]] = (),
        dims: Sequence[int] = (),
        channels: int = 1,
        passes: int = 1,
        chunks: int = 1,
        window: int = 0,
        root: int = 0,
        src: int = 0,
        dst: int = 0,
        compute_ns: Sequence[int] = (),
        after: Sequence[int] = (),
        name: str = "",
    ) -> None: ...
    kind: str
    bytes_: int
    algorithm: str
    rings: list[list[int]]
    dims: list[int]
    channels: int
    passes: int
    chunks: int
    window: int
    root: int
    src: int
    dst: int
    compute_ns: list[int]
    after: list[int]
    name: str

class JobSpec:
    """A job: ranks on hosts and a program.

    ``sender``: ``"qp_per_step"`` (a fresh QP per message), ``"persistent"`` (one QP per connection
    and channel, messages in order) or ``"qp_pool"`` (``pool`` QPs, step mod pool). ``port``:
    ``"per_step"`` (the source port carries the step, with qp_pool the step mod pool, and ECMP sees
    it) or ``"sticky"`` (a port drawn per QP; the marker still learns the step, as from another
    carrier). With qp_pool a marker whose ``step_bits`` is log2(pool) sees what the port carries.
    ``dependency``: ``"count"`` (any arrival enables the next step), ``"in_order"``
    (step k + 1 leaves once steps up to k are in) or ``"per_chunk"`` (step k + 1 leaves once step k
    is in). ``notify``: ``"receiver"`` (last byte in) or ``"sender_ack"`` (the sender's last ACK).
    ``endpoint_delay_ns`` passes between an arrival and what it sets off. ``rank_delay_ns``: start
    delay per rank; ``step_delay_ns``: extra delay per rank before every step it sends;
    ``compute_scale`` multiplies compute operations per rank. Empty lists: none.
    ``messages_per_step``: a step of a ring travels as so many messages (1..256) on its connection,
    each as soon as its like of the step before is in, as NCCL's slices. ``marker``: None
    leaves the job unmarked. ``job_id`` is 1..16383 and unique. ``priority``: data class 1..7.
    """

    def __init__(
        self,
        *,
        job_id: int,
        hosts: Sequence[int],
        ops: Sequence[Op],
        start_ns: int = 0,
        sender: str = "qp_per_step",
        pool: int = 4,
        messages_per_step: int = 1,
        port: str = "per_step",
        dependency: str = "in_order",
        notify: str = "receiver",
        endpoint_delay_ns: int = 0,
        rank_delay_ns: Sequence[int] = (),
        step_delay_ns: Sequence[int] = (),
        compute_scale: Sequence[float] = (),
        marker: MarkerParams | None = None,
        known: bool = True,
        priority: int = 3,
        cc: CcConfig | None = None,
        name: str = "",
    ) -> None: ...
    job_id: int
    hosts: list[int]
    ops: list[Op]
    start_ns: int
    sender: str
    pool: int
    messages_per_step: int
    port: str
    dependency: str
    notify: str
    endpoint_delay_ns: int
    rank_delay_ns: list[int]
    step_delay_ns: list[int]
    compute_scale: list[float]
    marker: MarkerParams | None
    known: bool
    priority: int
    cc: CcConfig | None
    name: str

class FlowSpec:
    """A message outside any job (background traffic). ``cc`` None: as the transport says."""

    def __init__(
        self,
        *,
        src: int,
        dst: int,
        bytes_: int,
        start_ns: int = 0,
        priority: int = 3,
        cc: CcConfig | None = None,
        sport: int = 0,
    ) -> None: ...
    src: int
    dst: int
    bytes_: int
    start_ns: int
    priority: int
    cc: CcConfig | None
    sport: int

# --- Simulation -------------------------------------------------------------------------------

class StatsConfig:
    """What is recorded.

    ``flows`` and ``steps``: their tables (``flows`` grows with every message). ``sample_ns``: width
    of the windows of the link series, 0 = off. ``links``: ``"fabric"`` (between switches) or
    ``"all"``. ``alpha_ns``: width of the windows of the marker's alpha trace, 0 = off.
    ``queue_bin_bytes``: bin of the queue histograms, 0 = off.
    """

    def __init__(
        self,
        *,
        flows: bool = True,
        steps: bool = True,
        sample_ns: int = 1_000_000,
        links: str = "fabric",
        alpha_ns: int = 0,
        queue_bin_bytes: int = 10_000,
    ) -> None: ...
    flows: bool
    steps: bool
    sample_ns: int
    links: str
    alpha_ns: int
    queue_bin_bytes: int

class MarkingPacket:
    """A data packet at dequeue, as a marking policy in Python sees it. Read-only."""

    @property
    def now_ns(self) -> int: ...
    @property
    def switch(self) -> int: ...
    @property
    def port(self) -> int:
        """Egress port, from 1."""
    @property
    def job(self) -> int:
        """Job id; 0: background."""
    @property
    def step(self) -> int:
        """Step tag, not wrapped."""
    @property
    def psn(self) -> int:
        """PSN, 24 bits."""
    @property
    def first(self) -> bool: ...
    @property
    def last(self) -> bool: ...
    @property
    def ect(self) -> bool:
        """ECN-capable and not yet marked."""
    @property
    def src(self) -> int:
        """Node id of the sending host."""
    @property
    def dst(self) -> int: ...
    @property
    def sport(self) -> int:
        """UDP source port."""
    @property
    def dest_qp(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def qdepth_packets(self) -> int:
        """Packets left in the egress queue."""
    @property
    def qdepth_bytes(self) -> int: ...
    @property
    def red(self) -> bool:
        """RED on this queue says mark."""
    @property
    def r(self) -> int:
        """The random number of this decision, in [0, 2**16)."""

class RunStats:
    """Totals of a run. ``finished``: every job and flow is done."""

    @property
    def finished(self) -> bool: ...
    @property
    def stopped(self) -> str:
        """Why it ended: ``done``, ``until``, ``stalled`` (nothing left to do) or ``callback``."""
    @property
    def sim_time_ns(self) -> int: ...
    @property
    def hops(self) -> int:
        """Link traversals by data, ACK, NAK and CNP packets."""
    @property
    def events(self) -> int:
        """Events that the core's own queue executed."""
    @property
    def ns3_events(self) -> int: ...
    @property
    def data_packets(self) -> int: ...
    @property
    def acks(self) -> int: ...
    @property
    def cnps(self) -> int: ...
    @property
    def naks(self) -> int: ...
    @property
    def timeouts(self) -> int: ...
    @property
    def retransmissions(self) -> int: ...
    @property
    def drops_buffer(self) -> int: ...
    @property
    def drops_wire(self) -> int:
        """By loss, drop rules and failed links."""
    @property
    def pauses(self) -> int: ...
    @property
    def marks_red(self) -> int: ...
    @property
    def marks_marker(self) -> int: ...
    @property
    def peak_packets(self) -> int:
        """Largest number of packets alive at once."""

class Simulation:
    """One run. Only one simulation runs in a process at a time (ns-3's simulator is global)."""

    def __init__(
        self,
        network: Network,
        transport: TransportConfig,
        *,
        seed: int = 1,
        stats: StatsConfig = ...,
    ) -> None:
        """Check everything that is known so far.

        Raises ValueError: a host without or with several cables, a rate without a RED entry, a
        buffer smaller than its headroom, an event on an unknown cable.
        """
    def warnings(self) -> list[str]:
        """Return set-ups that work but may surprise, e.g. PFC whose headroom can drop."""
    def drops_done(self) -> list[int]:
        """Return how many packets each rule of :meth:`Network.add_drop` took so far, in order."""
    def add_job(self, job: JobSpec) -> None:
        """Add a job before the run.

        Raises ValueError: unknown host, unreachable pair, job id in use, a ring over one node, a
        dependency cycle (naming the operations), an algorithm that does not do this kind.
        """
    def add_flow(self, flow: FlowSpec) -> int:
        """Add a background flow before the run; return its number (from 0)."""
    def add_flows(
        self,
        src: Sequence[int],
        dst: Sequence[int],
        bytes_: Sequence[int],
        start_ns: Sequence[int],
        *,
        priority: int = 3,
        cc: CcConfig | None = None,
    ) -> None:
        """Add many background flows at once."""
    def set_marking_policy(
        self, switch: int, policy: Callable[[MarkingPacket], bool] | None
    ) -> None:
        """Let ``policy`` decide on marks beside RED for data packets that leave ``switch``.

        It goes in place of the switch's own ``marking``. An exception in it ends the run and
        comes out of :meth:`run`.
        """
    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Call ``action`` at ``time_ns`` as an event of ns-3's simulator."""
    def on_operation(self, action: Callable[[int, int, int], None] | None) -> None:
        """Call ``action(job_id, op, time_ns)`` when the last rank is done with an operation.

        At that rank nothing that waits for the operation has begun then; other ranks may be ahead.
        An exception in it ends the run and comes out of :meth:`run`.
        """
    def set_planned(self, job: int, on: bool) -> None:
        """Say whether a job (by its id) takes its planned paths; messages under way keep theirs.

        Jobs take them unless told otherwise. May be called during the run.

        Raises ValueError: no such job.
        """
    def set_marker(self, job: int, params: MarkerParams) -> None:
        """Replace the parameters of a job's marker on all switches; its state stays.

        May be called during the run.

        Raises ValueError: no such job, it was added without a marker, or parameters out of range.
        """
    def path(self, src: int, dst: int, sport: int, *, channel: int = 0, job: int = 0) -> list[int]:
        """Return the directed links that a packet would take now (ECMP or planned)."""
    def run(
        self,
        until_ns: int = 0,
        on_progress: Callable[[int, float, int], None] | None = None,
        progress_events: int = 2_000_000,
    ) -> RunStats:
        """Run until all jobs and all background flows are done, or ``until_ns`` (0: no limit).

        ``on_progress(sim_time_ns, fraction, events)`` comes every ``progress_events`` events;
        ``fraction`` is the share of payload bytes of all jobs that arrived (of flows where there
        is no job). An exception in it (KeyboardInterrupt too) ends the run cleanly and comes out
        of this call; the tables then hold what happened up to there. May be called again to go on.
        """
    def stats(self) -> RunStats: ...

    # Tables. Times in ns, cut to whole ones; NO_VALUE where something did not end.

    def flows(self) -> Columns:
        """Messages, in the order in which they ended.

        Columns: id (in the order in which they were sent, from 0), job (0: background), op (of
        background: the number of the flow), ring, step, src, dst, bytes, start_ns, end_ns (last
        ACK at the sender), delivered_ns (last byte at the receiver), retransmissions, sport, qp.
        """
    def steps(self) -> Columns:
        """Steps: job, op, ring, step, start_ns (first send), end_ns (last delivery), messages."""
    def collectives(self) -> Columns:
        """Operations: job, op, start_ns (first rank), end_ns (last rank), cct_ns, bytes."""
    def op_ranks(self) -> Columns:
        """Operations by rank: job, op, rank, start_ns, end_ns."""
    def jobs(self) -> Columns:
        """Jobs: job, start_ns, end_ns, jct_ns, bytes (payload delivered), ranks."""
    def links(self) -> Columns:
        """Directed links, totals.

        Columns: link, src, dst, rate_bps, packets, bytes, data_packets, marks_red, marks_marker,
        drops_buffer, drops_wire, pauses_sent, pauses_received, paused_ns, max_queue_bytes,
        max_queue_packets, max_steps, max_distance (largest of the link series).
        """
    def link_series(self) -> Columns:
        """Recorded links over windows of ``sample_ns``, sorted by time, link and job.

        Columns: link, job, time_ns (start), data_bytes, data_packets, steps (distinct steps that
        left in the window), distance (largest minus smallest of them), queue_bytes (largest at a
        dequeue), marks. Windows without a packet of the job on the link have no row.
        """
    def alpha_trace(self) -> Columns:
        """Marker state, at the first packet of each window.

        Columns: time_ns, switch, port (0 with scope switch), job, alpha, step_min, psn_rec.
        """
    def queue_histogram(self) -> Columns:
        """Queue bytes left at each dequeue: link, bin (lower edge, bytes), packets."""
    def markers(self) -> Columns:
        """Marker counters: switch, job, data, marks, red_marks, corrections, advances."""
    def rate_trace(self) -> Columns:
        """Sender rates asked for with :meth:`trace_rate`: flow, time_ns, rate_bps, alpha."""
    def trace_rate(self, src: int, dst: int) -> None:
        """Record rate and alpha of QPs from ``src`` to ``dst`` at each packet sent and each CNP."""

def memory_peak_bytes() -> int:
    """Return the largest resident set of this process so far."""
