"""The switch in memory: no threads, no sockets, no clock of its own.

Times are microseconds and come with every call; random numbers come from an injected source. The
same calls in the same order give the same frames.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from finsy.proto import p4i
from google.protobuf import text_format

from ringstep.protocol.limits import CPU_PORT, DROP_PORT
from ringstep.softswitch import codegen, hashes
from ringstep.softswitch.errors import PipelineError
from ringstep.softswitch.model import (
    VALID,
    ConstEntry,
    FieldRef,
    LearnList,
    Program,
    TableDef,
    load_program,
)
from ringstep.softswitch.queueing import EgressQueue, QueueConfig
from ringstep.softswitch.tables import (
    ActionCall,
    ActionInfo,
    ActionProfile,
    ControllerHeader,
    CounterArray,
    Entry,
    Exact,
    KeySpec,
    Lpm,
    Match,
    MeterArray,
    Pipeline,
    Range,
    RegisterArray,
    Table,
    TableError,
    Ternary,
)

log = logging.getLogger(__name__)
program_log = logging.getLogger("ringstep.softswitch.program")

Rng: TypeAlias = Callable[[int, int], int]
"""random(low, high), both included."""

MAX_PORT = DROP_PORT - 1
"""The largest port number there is."""

MAX_PASSES = 256
"""How often a packet and its clones may come back to ingress or egress; then they are dropped and
counted. BMv2 lets a program loop for ever."""

MAX_COMING_BACK = 1024
"""Packets that may wait to come back, like BMv2's input buffer; more are dropped and counted."""

MAX_DIGESTS = 4096
"""Digests that may wait to be taken; more are dropped and counted."""

HANDLED = ()
"""What generated code returns for a packet whose fate it has settled by a request."""

_RID, _PASSES, _REST = 4, 5, 7
"""Where these stand in the items of a program that copies packets (see `codegen`)."""


class AssertionViolated(Exception):
    """An assert or assume of the P4 program does not hold for a packet."""


# --------------------------------------------------------------------------------------------
# Compilation
# --------------------------------------------------------------------------------------------


def compile_pipeline(p4info: p4i.P4Info | str, json_text: str) -> Pipeline:
    """A pipeline in its initial state from P4Info (message or text) and BMv2 JSON.

    Raises UnsupportedConstruct for what the switch does not execute and PipelineError where the
    JSON is broken or P4Info does not describe the same program.
    """
    info = _parsed(p4info)
    try:
        return _compiled(info, json_text)
    except PipelineError:
        raise
    except (RecursionError, SyntaxError) as error:
        # Python bounds how deep expressions and blocks nest.
        raise PipelineError(f"the program nests too deep to be executed: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise PipelineError(
            f"the BMv2 JSON is malformed: {type(error).__name__}: {error}"
        ) from error


def _compiled(info: p4i.P4Info, json_text: str) -> Pipeline:
    units = _counter_units(info)
    namespace: dict[str, Any] = {}
    program = load_program(json_text)
    _check_match(info, program)
    _name_digests(info, program)
    generated = codegen.Generator(program, units).generate()
    exec(compile(generated.source, "<generated pipeline>", "exec"), namespace)
    profiles = {
        p.name: ActionProfile(p.name, p.max_size, p.algorithm is not None)
        for p in program.profiles.values()
    }
    return Pipeline(
        tables={t.name: _table(program, t, profiles) for t in program.tables()},
        action_profiles=profiles,
        counters={
            c.name: CounterArray(c.name, c.size, units.get(c.name, "both"))
            for c in program.counters.values()
            if c.table is None
        },
        meters={
            m.name: MeterArray(m.name, m.size, m.unit)
            for m in program.meters.values()
            if m.table is None
        },
        registers={
            r.name: RegisterArray(r.name, r.size, r.width) for r in program.registers.values()
        },
        digests={
            one.name: tuple(_width(program, ref) for ref in one.fields)
            for one in program.learn_lists.values()
        },
        actions={a.name: list(a.params) for a in program.actions.values()},
        controller_headers={
            h.preamble.name: ControllerHeader(
                h.preamble.name, tuple((m.name, m.bitwidth) for m in h.metadata)
            )
            for h in info.controller_packet_metadata
        },
        p4info=info,
        json_text=json_text,
        source=generated.source,
        bindings=generated.bindings,
        copies_packets=generated.copies_packets,
        build=namespace["build"],
    )


def _name_digests(info: p4i.P4Info, program: Program) -> None:
    """Give each learn list the name that P4Info has for its digest.

    A list is named for its struct, so several lists may be one digest. What has no name in the
    source is named by each compiler back end in its own way, in the same order.
    """
    if not info.digests:
        return
    names = [one.preamble.name for one in info.digests]
    named = {one.name for one in program.learn_lists.values()} & set(names)
    nameless = [number for number, one in program.learn_lists.items() if one.name not in named]
    left = [name for name in names if name not in named]
    if len(nameless) != len(left):
        raise PipelineError(
            f"P4Info has digests {', '.join(names)}, the BMv2 JSON "
            f"{', '.join(one.name for one in program.learn_lists.values()) or 'none'}"
        )
    for number, name in zip(nameless, left, strict=True):
        program.learn_lists[number] = LearnList(name, program.learn_lists[number].fields)


def _width(program: Program, ref: FieldRef) -> int:
    return 1 if ref.name == VALID else program.field(ref).width


def _parsed(p4info: p4i.P4Info | str) -> p4i.P4Info:
    if isinstance(p4info, p4i.P4Info):
        return p4info
    message = p4i.P4Info()
    try:
        text_format.Parse(p4info, message)
    except text_format.ParseError as error:
        raise PipelineError(f"the P4Info is not a text-format P4Info: {error}") from None
    return message


def _counter_units(info: p4i.P4Info) -> dict[str, str]:
    names = {p4i.CounterSpec.BYTES: "bytes", p4i.CounterSpec.PACKETS: "packets"}
    units: dict[str, str] = {}
    for counter in info.counters:
        units[counter.preamble.name] = names.get(counter.spec.unit, "both")
    for direct in info.direct_counters:
        units[direct.preamble.name] = names.get(direct.spec.unit, "both")
    return units


def _table(program: Program, table: TableDef, profiles: dict[str, ActionProfile]) -> Table:
    actions = [program.actions[i] for i in table.action_ids]
    default: ActionCall | None = None
    if table.default_action_id is not None:
        if table.default_action_id not in program.actions:
            raise PipelineError(
                f"the default action, id {table.default_action_id}, does not exist ({table.where})"
            )
        default = ActionCall(program.actions[table.default_action_id].name, table.default_args)
    try:
        made = Table(
            table.name,
            [KeySpec(k.name, k.match_type, k.width) for k in table.keys],
            [ActionInfo(a.name, a.params) for a in actions],
            max_size=table.max_size if table.entries is None else 0,
            profile=None if table.profile is None else profiles[table.profile],
            direct_counter=table.direct_counter,
            direct_meter=table.direct_meter,
            meter_unit=program.meters[table.direct_meter].unit if table.direct_meter else "packets",
            default=default,
            default_is_const=table.default_is_const,
            default_action_is_const=table.default_action_is_const,
        )
        if table.entries is not None:
            made.install_const(_const_entries(program, table, made, table.entries))
    except TableError as error:
        raise PipelineError(f"{error} ({table.where})") from None
    return made


def _const_entries(
    program: Program, table: TableDef, made: Table, entries: tuple[ConstEntry, ...]
) -> list[Entry]:
    """Const entries, with the JSON's priority (low wins) turned into P4Runtime's (high wins)."""
    kinds: dict[str, Callable[[int, int], Match]] = {
        "exact": lambda a, b: Exact(a),
        "lpm": Lpm,
        "ternary": Ternary,
        "range": Range,
    }
    last = max((e.priority for e in entries), default=0)
    result = []
    for entry in entries:
        if entry.action_id not in program.actions:
            raise PipelineError(
                f"a const entry names action id {entry.action_id}, which does not exist "
                f"({table.where})"
            )
        result.append(
            Entry(
                match=tuple(kinds[kind](a, b) for kind, a, b in entry.matches),
                priority=last - entry.priority + 1 if made.requires_priority else 0,
                action=ActionCall(program.actions[entry.action_id].name, entry.args),
                is_const=True,
            )
        )
    return result


_INFO_MATCH_TYPES = {
    p4i.MatchField.EXACT: "exact",
    p4i.MatchField.LPM: "lpm",
    p4i.MatchField.TERNARY: "ternary",
    p4i.MatchField.OPTIONAL: "ternary",
    p4i.MatchField.RANGE: "range",
}


def _check_match(info: p4i.P4Info, program: Program) -> None:
    """Raises PipelineError unless all that P4Info names is in the JSON, with the same shape."""

    def missing(kind: str, name: str, known: list[str]) -> PipelineError:
        have = ", ".join(sorted(known)) or "none"
        return PipelineError(f"P4Info has {kind} {name!r}, the BMv2 JSON has not (it has: {have})")

    tables = {t.name: t for t in program.tables()}
    for table in info.tables:
        name = table.preamble.name
        if name not in tables:
            raise missing("table", name, list(tables))
        _check_table_match(table, tables[name])
    actions = {a.name: a for a in program.actions.values()}
    for action in info.actions:
        name = action.preamble.name
        if name not in actions:
            # An action no table can run any more is left out of the JSON.
            if any(ref.id == action.preamble.id for t in info.tables for ref in t.action_refs):
                raise missing("action", name, list(actions))
            continue
        described = [(p.name, p.bitwidth) for p in action.params]
        actual = list(actions[name].params)
        if [w for _, w in described] != [w for _, w in actual]:
            raise PipelineError(
                f"action {name!r}: P4Info has parameters {described}, the BMv2 JSON {actual}"
            )
    for kind, names, known in (
        ("counter", info.counters, list(program.counters)),
        ("meter", info.meters, [m.name for m in program.meters.values() if m.table is None]),
        ("direct meter", info.direct_meters, [m.name for m in program.meters.values() if m.table]),
        ("register", info.registers, list(program.registers)),
        # p4c leaves a profile that no table uses out of the JSON.
        ("action profile", [p for p in info.action_profiles if p.table_ids], [*program.profiles]),
    ):
        for item in names:
            if item.preamble.name not in known:
                raise missing(kind, item.preamble.name, known)
    direct = {c.name for c in program.counters.values() if c.table is not None}
    for described_counter in info.direct_counters:
        if described_counter.preamble.name not in direct:
            raise missing("direct counter", described_counter.preamble.name, list(direct))
    for counter in info.counters:
        size = program.counters[counter.preamble.name].size
        if counter.size != size:
            raise PipelineError(
                f"counter {counter.preamble.name!r}: P4Info has size {counter.size}, "
                f"the BMv2 JSON {size}"
            )


def _check_table_match(described: p4i.Table, table: TableDef) -> None:
    name = described.preamble.name
    if len(described.match_fields) != len(table.keys):
        raise PipelineError(
            f"table {name!r}: P4Info has {len(described.match_fields)} match fields, "
            f"the BMv2 JSON {len(table.keys)}"
        )
    for match_field, key in zip(described.match_fields, table.keys, strict=True):
        match_type = _INFO_MATCH_TYPES.get(match_field.match_type, "unknown")
        # Width 0 says that the values are not plain bit strings (type `error`, for one).
        width = match_field.bitwidth or key.width
        if width != key.width or match_type != key.match_type:
            raise PipelineError(
                f"table {name!r}, match field {match_field.name!r}: P4Info has "
                f"{match_type}<{match_field.bitwidth}>, the BMv2 JSON "
                f"{key.match_type}<{key.width}> ({key.name})"
            )


# --------------------------------------------------------------------------------------------
# The switch
# --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PortStats:
    """Counts of one port since the switch was made."""

    rx_packets: int = 0
    rx_bytes: int = 0
    tx_packets: int = 0
    tx_bytes: int = 0
    tail_drops: int = 0
    """Packets for this port that found its queue full."""
    ingress_drops: int = 0
    """Packets from this port that the program dropped in ingress."""
    egress_drops: int = 0
    """Packets for this port that the program dropped in egress."""
    queue_depth: int = 0
    """Packets waiting now."""


@dataclass(slots=True)
class SwitchStats:
    """Counts that belong to no port."""

    no_pipeline_drops: int = 0
    assertion_drops: int = 0
    error_drops: int = 0
    copy_drops: int = 0
    """Copies and returning packets beyond `MAX_PASSES` or `MAX_COMING_BACK`."""
    digest_drops: int = 0
    """Digests that nobody took."""
    last_error: str = ""
    generation: int = field(default=0)
    """How many pipelines have been committed."""


_Sent: TypeAlias = bytes | tuple[()] | None
"""What egress returns: a frame, `HANDLED`, or None for a packet that it dropped."""

_Waiting: TypeAlias = tuple[
    float, int, EgressQueue, tuple[Any, ...], int, int, Callable[..., _Sent]
]


@dataclass(frozen=True, slots=True)
class _Pass:
    """A packet about to enter ingress; `kept` is None for one from outside."""

    port: int
    frame: bytes
    kind: int = codegen.NORMAL
    kept: tuple[int, ...] | None = None
    passes: int = 0


def seeded_rng(seed: int) -> Rng:
    """A reproducible source of uniform integers, both bounds included."""
    source = random.Random(seed)
    bits = source.getrandbits

    def draw(low: int, high: int) -> int:
        span = high - low + 1
        if span & (span - 1) == 0:
            return low + bits(span.bit_length() - 1) if span > 1 else low
        return source.randint(low, high)

    return draw


class Switch:
    """One v1model switch.

    `rng` is what the program's random() draws from; unless given it is seeded with `seed`.
    `lock` is taken by whoever shares the switch between threads: around a batch of receive and
    advance calls, and around a batch of table changes.
    """

    def __init__(
        self,
        device_id: int = 1,
        *,
        rng: Rng | None = None,
        seed: int = 0,
        cpu_port: int = CPU_PORT,
        queues: dict[int, QueueConfig] | None = None,
    ) -> None:
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.rng = rng or seeded_rng(seed)
        self.lock = threading.RLock()
        self.pipeline: Pipeline | None = None
        self.stats = SwitchStats()
        self._ports: dict[int, PortStats] = {}
        self._queues: dict[int, EgressQueue] = {}
        self._calendar: list[_Waiting] = []
        self._sequence = itertools.count()
        self._sent: list[tuple[int, bytes]] = []
        self._ingress: Callable[..., tuple[Any, ...] | None] | None = None
        self._egress: Callable[..., _Sent] | None = None
        self._reparse: Callable[..., tuple[Any, ...]] | None = None
        self._copies_packets = False
        # What generated code asks for, done as soon as it returns.
        self._requests: list[tuple[str, Any, Any]] = []
        # Packets and items that come back, done before the next packet.
        self._coming_back: deque[_Pass | tuple[Any, ...]] = deque()
        self._digests: deque[tuple[str, tuple[int, ...]]] = deque()
        for port, config in (queues or {}).items():
            self.configure_queue(port, config)

    # -- configuration

    def configure_queue(self, port: int, config: QueueConfig) -> None:
        """Give a port's egress queue a pace and a capacity. Ports without one are unlimited."""
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"port {port} is not in 0..{MAX_PORT}")
        queue = self._queues.get(port)
        if queue is None:
            self._queues[port] = EgressQueue(config)
        else:
            queue.configure(config)

    def load(self, p4info: p4i.P4Info | str, json_text: str) -> Pipeline:
        """Compile and commit. Raises PipelineError, with the running pipeline untouched."""
        pipeline = compile_pipeline(p4info, json_text)
        self.commit(pipeline)
        return pipeline

    def commit(self, pipeline: Pipeline) -> None:
        """Make `pipeline` the one that processes packets, with the state it holds.

        Packets that wait in queues leave through the pipeline that put them there.
        """
        ingress, egress, reparse = pipeline.build(**self._bound(pipeline))
        with self.lock:
            self.pipeline = pipeline
            self._ingress, self._egress, self._reparse = ingress, egress, reparse
            self._copies_packets = pipeline.copies_packets
            self._digests.clear()
            self.stats.generation += 1

    def _bound(self, pipeline: Pipeline) -> dict[str, Any]:
        """What the names in the generated source stand for."""

        def assertion_failed(where: str) -> None:
            raise AssertionViolated(where)

        def asking(what: str) -> Callable[..., tuple[()]]:
            def ask(first: Any, second: Any = None) -> tuple[()]:
                self._requests.append((what, first, second))
                return HANDLED

            return ask

        runtime: dict[str, Any] = {
            "rng": self.rng,
            "log": _log_message,
            "assertion": assertion_failed,
            "digest": self._digest,
            **{
                what: asking(what)
                for what in ("clone", "clone_egress", "multicast", "resubmit", "recirculate")
            },
        }
        makers: dict[str, Callable[[str], Any]] = {
            "table.get": lambda name: pipeline.tables[name].index.get,
            "table.memo": lambda name: pipeline.tables[name].memo.get,
            "table.search": lambda name: pipeline.tables[name].search,
            "table.default": lambda name: pipeline.tables[name].default_record,
            "register": lambda name: pipeline.registers[name].values,
            "meter": lambda name: pipeline.meters[name].execute,
            "counter.packets": lambda name: pipeline.counters[name].packets,
            "counter.bytes": lambda name: pipeline.counters[name].bytes,
            "hash": lambda name: hashes.ALGORITHMS[name],
            "runtime": lambda name: runtime[name],
            "struct.unpack_from": lambda fmt: codegen.bind_structs(fmt, "unpack_from"),
            "struct.pack_into": lambda fmt: codegen.bind_structs(fmt, "pack_into"),
        }
        return {bound: makers[kind](name) for bound, (kind, name) in pipeline.bindings.items()}

    # -- packets

    def receive(self, port: int, frame: bytes, now_us: float) -> None:
        """Take a frame in at `port`. Never raises for what the frame holds.

        Frames whose departure is due before `now_us` are sent first; `advance` returns them.
        """
        if self._calendar and self._calendar[0][0] <= now_us:
            self._depart(now_us)
        stats = self._ports.get(port) or self._port(port)
        stats.rx_packets += 1
        stats.rx_bytes += len(frame)
        if self._ingress is None:
            self.stats.no_pipeline_drops += 1
            return
        if self._copies_packets:
            self._coming_back.append(_Pass(port, frame))
            self._go_round(now_us)
            return
        try:
            item = self._ingress(frame, port, int(now_us))
        except Exception as error:
            self._failed(error)
            return
        if item is None:
            stats.ingress_drops += 1
            return
        self._enqueue(item, now_us)

    def _enqueue(self, item: tuple[Any, ...], now_us: float) -> None:
        """Put an item into its port's queue, or send it at once where that does not delay it."""
        now = int(now_us)
        queue = self._queues.get(item[0])
        if queue is None:
            self._send(item, now, now, 0, 0, self._egress)
            return
        if queue.depth >= queue.capacity:
            self._port(item[0]).tail_drops += 1
            return
        depth = queue.depth
        at = queue.departure(now_us, item[1])
        if at <= now_us:
            queue.depth -= 1
            self._send(item, now, now, depth, depth, self._egress)
            return
        assert self._egress is not None
        heapq.heappush(
            self._calendar, (at, next(self._sequence), queue, item, now, depth, self._egress)
        )

    def packet_out(self, frame: bytes, now_us: float) -> None:
        """Take a frame, its packet_out header in front, in at the CPU port."""
        self.receive(self.cpu_port, frame, now_us)

    def advance(self, now_us: float) -> list[tuple[int, bytes]]:
        """The frames that left since the last call, as (port, frame) in order of departure.

        The CPU port's are packet-ins, the packet_in header in front.
        """
        if self._calendar and self._calendar[0][0] <= now_us:
            self._depart(now_us)
        sent, self._sent = self._sent, []
        return sent

    def next_departure(self) -> float | None:
        """When the next waiting packet is due, in microseconds; None if none waits.

        Frames that left already and wait for `advance` are due at once: -inf.
        """
        if self._sent:
            return float("-inf")
        return self._calendar[0][0] if self._calendar else None

    def _depart(self, now_us: float) -> None:
        calendar = self._calendar
        while calendar and calendar[0][0] <= now_us:
            at, _, queue, item, enq_time, enq_depth, egress = heapq.heappop(calendar)
            queue.depth -= 1
            self._send(item, int(at), enq_time, enq_depth, queue.depth, egress)
            if self._coming_back:
                self._go_round(at)

    def _send(
        self,
        item: tuple[Any, ...],
        now: int,
        enq_time: int,
        enq_depth: int,
        deq_depth: int,
        egress: Callable[..., _Sent] | None,
    ) -> None:
        assert egress is not None
        try:
            frame = egress(item, now, enq_time, enq_depth, deq_depth)
        except Exception as error:
            self._requests.clear()
            self._failed(error)
            return
        if self._requests:
            self._carry_out_after_egress(item, egress)
        port = item[0]
        stats = self._ports.get(port) or self._port(port)
        if not isinstance(frame, bytes):
            if frame is None:
                stats.egress_drops += 1
            return
        stats.tx_packets += 1
        stats.tx_bytes += len(frame)
        self._sent.append((port, frame))

    # -- copies of packets

    def _go_round(self, now_us: float) -> None:
        """Put through ingress and egress whatever comes back, until nothing does."""
        waiting = self._coming_back
        while waiting:
            one = waiting.popleft()
            if isinstance(one, _Pass):
                self._pass(one, now_us)
            else:
                self._enqueue(one, now_us)

    def _come_back(self, one: _Pass | tuple[Any, ...], passes: int) -> None:
        if passes > MAX_PASSES or len(self._coming_back) >= MAX_COMING_BACK:
            self.stats.copy_drops += 1
            return
        self._coming_back.append(one)

    def _pass(self, one: _Pass, now_us: float) -> None:
        """Once through ingress of a program that copies packets."""
        assert self._ingress is not None
        try:
            item = self._ingress(one.frame, one.port, int(now_us), one.kind, one.kept)
        except Exception as error:
            self._requests.clear()
            self._failed(error)
            return
        requests, self._requests = self._requests, []
        for what, first, second in requests:
            if what == "clone":
                self._clone(one, first, second, now_us)
            elif what == "multicast":
                self._multicast(first, second, one.passes, now_us)
            else:
                again = _Pass(one.port, one.frame, codegen.RESUBMITTED, first, one.passes + 1)
                self._come_back(again, again.passes)
        if item is None:
            self._port(one.port).ingress_drops += 1
        elif item != HANDLED:
            self._enqueue(_item(item, item[0], 0, one.passes, 0), now_us)

    def _clone(self, one: _Pass, session_id: int, kept: tuple[int, ...], now_us: float) -> None:
        assert self.pipeline is not None
        assert self._reparse is not None
        session = self.pipeline.replication.sessions.get(session_id)
        if session is None:
            return
        item = self._reparse(one.frame, one.port if one.kept is None else 0, kept)
        for replica in session.replicas:
            copy = _item(item, replica.port, replica.instance, one.passes, session.max_length)
            self._enqueue(copy, now_us)

    def _multicast(self, group: int, item: tuple[Any, ...], passes: int, now_us: float) -> None:
        assert self.pipeline is not None
        for replica in self.pipeline.replication.groups.get(group, ()):
            self._enqueue(_item(item, replica.port, replica.instance, passes, 0), now_us)

    def _carry_out_after_egress(self, item: tuple[Any, ...], egress: Callable[..., _Sent]) -> None:
        requests, self._requests = self._requests, []
        passes = item[_PASSES] + 1
        for what, first, second in requests:
            if egress is not self._egress:
                # The pipeline was replaced while the packet waited: there is nowhere to come back.
                self.stats.copy_drops += 1
            elif what == "recirculate":
                again = _Pass(0, first, codegen.RECIRCULATED, second, passes)
                self._come_back(again, passes)
            else:
                assert self.pipeline is not None
                session = self.pipeline.replication.sessions.get(first)
                for replica in session.replicas if session else ():
                    limit = session.max_length if session else 0
                    copy = _item(second, replica.port, replica.instance, passes, limit)
                    self._come_back(copy, passes)

    # -- digests

    def _digest(self, name: str, values: tuple[int, ...]) -> None:
        if len(self._digests) >= MAX_DIGESTS:
            self.stats.digest_drops += 1
            return
        self._digests.append((name, values))

    def take_digests(self) -> list[tuple[str, tuple[int, ...]]]:
        """The digests since the last call, as (its name in P4Info, the values of its fields)."""
        taken = list(self._digests)
        self._digests.clear()
        return taken

    def _failed(self, error: Exception) -> None:
        if isinstance(error, AssertionViolated):
            self.stats.assertion_drops += 1
            text = f"assertion of the P4 program does not hold: {error}"
        else:
            self.stats.error_drops += 1
            text = f"{type(error).__name__}: {error}"
        if text != self.stats.last_error:
            self.stats.last_error = text
            log.error("packet dropped: %s", text)

    # -- statistics

    def _port(self, port: int) -> PortStats:
        return self._ports.setdefault(port, PortStats())

    def port_stats(self) -> dict[int, PortStats]:
        """Counts of all ports that have been used or given a queue, by port number."""
        for port, queue in self._queues.items():
            self._port(port).queue_depth = queue.depth
        return dict(sorted(self._ports.items()))


def _item(item: tuple[Any, ...], port: int, rid: int, passes: int, limit: int) -> tuple[Any, ...]:
    """An item of a program that copies packets, as one of its copies."""
    return (port, *item[1:_RID], rid, passes, limit, *item[_REST:])


def _log_message(text: str, *values: int) -> None:
    """v1model's log_msg: each `{}` in `text` stands for the next value."""
    for value in values:
        text = text.replace("{}", str(value), 1)
    program_log.info("%s", text)
