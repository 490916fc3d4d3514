"""Where the two-flow experiment runs: loopback wires in real time, or memory in virtual time.

Both rigs run the same compiled P4 program on the software switch, the same software RNICs, and a
controller process that programs the switch over P4Runtime. They differ in the wire and the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ringstep.controller.client import Q_GATE_OFF, ControllerClient, job_spec
from ringstep.controller.jobs import Marking, PathsChoice, QueuePair
from ringstep.fabric.units import format_mac
from ringstep.hostlib.wires import HostLoop, UdpWire, VirtualNet
from ringstep.lab.processes import Child, call, ringstep, running
from ringstep.lab.results import FlowRun
from ringstep.lab.scenario import Mode, Starts
from ringstep.lab.twoflow import (
    HOST_PORTS,
    HOSTS,
    JOB_QPNS,
    SWITCH_MAC,
    FlowFailed,
    HostParams,
    Pair,
    host_ip,
    host_mac,
    make_nics,
)
from ringstep.softswitch import QueueConfig, Switch
from ringstep.softswitch.p4rt.server import P4RuntimeServer, serve

SWITCH_NAME: Final = "s1"
JOB_NAMES: Final[Mapping[Mode, str]] = {
    Mode.DCQCN: "two-flows-dcqcn",
    Mode.IDEAL: "two-flows-dcqcn",
    Mode.MARKER: "two-flows-marker",
}
_COUNTERS: Final = ("data", "marks", "red_marks", "corrections", "advances")
_PATIENCE: Final = 8.0
"""A run may last this many times a flow's time alone before it counts as stuck."""
_LEAD_US: Final = 20_000.0
"""From the call to the start of the first flow, in real time."""
_TRIES: Final = 3
"""A pair in real time that does not end is run so many times: the machine may have been too busy
for its wires. What is broken fails every time."""
_QUIET_US: Final = 500_000.0
"""Before the next try: what the failed one left in queues and sockets must not reach it."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class JobSetting:
    """The marker's parameters, as ``ringstep job register`` takes them."""

    profile: str
    k: float
    t_win_us: int
    n_sample: int
    n_warmup: int
    q_gate: int | None


@dataclass(frozen=True, slots=True)
class LinkSetting:
    """The switch's ports: all alike; RED on the bottleneck."""

    rate_bps: float
    queue_packets: int
    red_min: int
    red_max: int
    red_p_max: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pair of flows did."""

    a: FlowRun
    b: FlowRun
    marked: dict[str, int]
    """What the switch counted for their job."""
    given_up: tuple[str, ...] = ()
    """Why tries before this one did not end, one text each."""


class Rig(Protocol):
    """Something that runs a pair of flows."""

    def describe(self) -> dict[str, Any]:
        """Return what of the rig belongs into ``result.json``."""

    def run(self, mode: Mode, at: Starts, seed: int) -> Outcome:
        """Run one pair.

        Raises:
            FlowFailed: a flow did not end well, or not in time; in real time, in each of several
                tries.
            ChildFailed: a process of the rig ended.
        """


def topology_toml(link: LinkSetting) -> str:
    """Return the topology file of one switch and three hosts."""
    lines = [
        "[red]",
        f"q_min = {link.red_min}",
        f"q_max = {link.red_max}",
        f"p_max = {link.red_p_max}",
        'mark_gap = "off"',
        "",
        "[[switch]]",
        f'name = "{SWITCH_NAME}"',
        "device_id = 1",
        f'mac = "{format_mac(SWITCH_MAC)}"',
        'role = "tor"',
    ]
    for name in HOSTS:
        lines += [
            "",
            "[[host]]",
            f'name = "{name}"',
            f'ip = "{host_ip(name)}"',
            f'mac = "{format_mac(host_mac(name))}"',
            "",
            "[[link]]",
            f'a = "{SWITCH_NAME}:{HOST_PORTS[name]}"',
            f'b = "{name}"',
            f'rate = "{link.rate_bps / 1e6:g}M"',
        ]
    return "\n".join(lines) + "\n"


class _Control:
    """The controller process and the two jobs, which differ only in whether they mark."""

    def __init__(self, child: Child, target: str, setting: JobSetting) -> None:
        self.child = child
        self.target = target
        self._setting = setting

    def add_switch(self, p4runtime: str) -> None:
        """Add the switch as an operator does, and wait until it is programmed."""
        call("switch", "add", SWITCH_NAME, p4runtime, "--wait", "--controller", self.target)

    def register(self, mode: Mode) -> dict[str, Any]:
        """Register a mode's job as an operator does, and wait until it is programmed."""
        s = self._setting
        pairs = [
            f"{sender}:r:{qpn:#x}" for sender, qpn in zip(("a", "b"), JOB_QPNS[mode], strict=True)
        ]
        printed = call(
            "job", "register", "--name", JOB_NAMES[mode], "--qp", pairs[0], "--qp", pairs[1],
            "--profile", s.profile, "--k", f"{s.k:g}", "--t-win-us", str(s.t_win_us),
            "--n-sample", str(s.n_sample), "--n-warmup", str(s.n_warmup),
            "--q-gate", "off" if s.q_gate is None else str(s.q_gate),
            "--marking", "on" if mode is Mode.MARKER else "off", "--paths", PathsChoice.ECMP,
            "--wait", "--json", "--controller", self.target,
        )  # fmt: skip
        job: dict[str, Any] = json.loads(printed)
        return job

    def renew(self, mode: Mode) -> None:
        """Release a job and register it again: a new generation starts from cleared state."""
        s = self._setting
        spec = job_spec(
            JOB_NAMES[mode],
            queue_pairs=[
                QueuePair(sender, "r", qpn)
                for sender, qpn in zip(("a", "b"), JOB_QPNS[mode], strict=True)
            ],
            profile=s.profile,
            k=s.k,
            t_win_us=s.t_win_us,
            n_sample=s.n_sample,
            n_warmup=s.n_warmup,
            q_gate=Q_GATE_OFF if s.q_gate is None else s.q_gate,
            marking=Marking.ON if mode is Mode.MARKER else Marking.OFF,
            paths=PathsChoice.ECMP,
        )

        async def talk(client: ControllerClient) -> None:
            await client.release(JOB_NAMES[mode])
            await client.register(spec)
            await client.wait_programmed(JOB_NAMES[mode])

        self._ask(talk)

    def counters(self, mode: Mode) -> dict[str, int]:
        """Return the job's counters on the switch."""

        async def talk(client: ControllerClient) -> dict[str, int]:
            state = await client.state(JOB_NAMES[mode])
            for switch in state.switches:
                if switch.error:
                    raise FlowFailed(f"cannot read {switch.switch}: {switch.error}")
                return {name: getattr(switch.counters, name) for name in _COUNTERS}
            raise FlowFailed(f"no switch knows job {JOB_NAMES[mode]}")

        return self._ask(talk)

    def _ask(self, talk: Callable[[ControllerClient], Awaitable[_T]]) -> _T:
        async def conversation() -> _T:
            async with ControllerClient(self.target) as client:
                return await talk(client)

        self.child.check()
        return asyncio.run(conversation())


@contextlib.contextmanager
def _controller(scratch: Path, link: LinkSetting, setting: JobSetting) -> Iterator[_Control]:
    topology = scratch / "topology.toml"
    topology.write_text(topology_toml(link))
    command = ringstep(
        "controller", "serve", "--topology", str(topology),
        "--db", f"sqlite:///{scratch / 'controller.sqlite3'}", "--listen", "127.0.0.1:0",
    )  # fmt: skip
    with running("controller", command, scratch) as child:
        ready = child.wait_ready()
        yield _Control(child, ready["listen"], setting)


def _counted(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in _COUNTERS}


class _Base:
    """What both rigs share: the jobs, and one pair after another."""

    def __init__(self, host: HostParams, control: _Control) -> None:
        self.host = host
        self._control = control
        self._step = 0
        self._nics = make_nics(host)

    def _prepare(self, mode: Mode) -> dict[str, int]:
        if mode is Mode.MARKER:
            self._control.renew(mode)
        return self._control.counters(mode)

    def _next_step(self) -> int:
        step, self._step = self._step, self._step + 2
        return step

    @property
    def _patience_us(self) -> float:
        alone_us = self.host.packets * 1100 * 8e6 / self.host.line_rate_bps
        return _PATIENCE * alone_us + 2e6

    def _finish(self, pair: Pair, mode: Mode, before: Mapping[str, int], ended: bool) -> Outcome:
        try:
            if not ended:
                raise FlowFailed(
                    f"not done after {self._patience_us * 1e-6:.0f} s: {pair.progress()}"
                )
            a, b = pair.results()
        finally:
            pair.close()
        return Outcome(a, b, _counted(before, self._control.counters(mode)))


class UdpRig(_Base):
    """Switch, controller and hosts as processes; every wire is a pair of UDP loopback sockets."""

    def __init__(
        self, host: HostParams, control: _Control, switch: Child, wires: Mapping[str, UdpWire]
    ) -> None:
        super().__init__(host, control)
        self._switch = switch
        self._loop = HostLoop([(self._nics[name], wires[name]) for name in HOSTS])

    def describe(self) -> dict[str, Any]:
        """Return the wire and the clock."""
        return {"wire": "udp", "clock": "real time"}

    def run(self, mode: Mode, at: Starts, seed: int) -> Outcome:
        """Run one pair in real time; ``seed`` is not used, the machine itself is the chance."""
        given_up: list[str] = []
        while True:
            try:
                return replace(self._try(mode, at), given_up=tuple(given_up))
            except FlowFailed as error:
                given_up.append(f"{mode}: {error}")
                if len(given_up) == _TRIES:
                    raise FlowFailed(
                        f"{_TRIES} tries in a row: {'; '.join(given_up)}. If this machine is busy, "
                        "try --wire memory, which no load can disturb"
                    ) from None
            self._settle(mode)

    def _settle(self, mode: Mode) -> None:
        """Wait until the switch answers and nothing arrives any more."""
        loop = self._loop
        deadline_us = loop.now_us + self._patience_us
        while loop.now_us < deadline_us:
            answers = True
            try:
                self._control.counters(mode)
            except FlowFailed:
                answers = False
            arrived = self._arrived()
            loop.run(deadline_us=loop.now_us + _QUIET_US)
            if answers and self._arrived() == arrived:
                return

    def _arrived(self) -> int:
        return sum(nic.stats.rx_frames for nic in self._nics.values())

    def _try(self, mode: Mode, at: Starts) -> Outcome:
        before = self._prepare(mode)
        loop = self._loop
        origin = loop.now_us + _LEAD_US
        pair = Pair(self._nics, self.host, mode, at, self._next_step(), origin)
        for start in pair.start_times():
            loop.call_at(start, lambda: pair.start_due(loop.now_us))

        def done() -> bool:
            pair.collect(loop.now_us)
            return pair.done

        try:
            ended = loop.run(done, deadline_us=origin + self._patience_us)
        except FlowFailed:
            pair.close()
            raise
        self._switch.check()
        return self._finish(pair, mode, before, ended)


@contextlib.contextmanager
def udp_rig(host: HostParams, link: LinkSetting, setting: JobSetting) -> Iterator[UdpRig]:
    """Bring up the rig on loopback; leaving the block leaves no process and no port behind."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringstep-")))
        wires = {name: stack.enter_context(UdpWire(("127.0.0.1", 0))) for name in HOSTS}
        command = ringstep("softswitch", "run", "--device-id", "1", "--grpc", "127.0.0.1:0")
        for name, wire in wires.items():
            peer = f"127.0.0.1:{wire.address[1]}"
            command += ["--port", f"{HOST_PORTS[name]}=udp:127.0.0.1:0,{peer}"]
            queue = f"rate_bps:{link.rate_bps:.0f},capacity:{link.queue_packets}"
            command += ["--queue", f"{HOST_PORTS[name]}={queue}"]
        switch = stack.enter_context(running("softswitch", command, scratch))
        ready = switch.wait_ready()
        for name, wire in wires.items():
            address, _, port = ready["ports"][str(HOST_PORTS[name])].rpartition(":")
            wire.connect((address, int(port)))
        control = stack.enter_context(_controller(scratch, link, setting))
        control.add_switch(ready["grpc"])
        control.register(Mode.DCQCN)
        control.register(Mode.MARKER)
        yield UdpRig(host, control, switch, wires)


class MemoryRig(_Base):
    """Switch and hosts in this process under a virtual clock; only P4Runtime is a real wire.

    The same seed gives the same bytes, on any machine and however slow.
    """

    LINK_DELAY_US: Final = 5.0

    def __init__(self, host: HostParams, control: _Control, switch: _SharedSwitch) -> None:
        super().__init__(host, control)
        self._shared = switch

    def describe(self) -> dict[str, Any]:
        """Return the wire and the clock."""
        return {"wire": "memory", "clock": "virtual time", "link_delay_us": self.LINK_DELAY_US}

    def run(self, mode: Mode, at: Starts, seed: int) -> Outcome:
        """Run one pair in virtual time."""
        before = self._prepare(mode)
        shared = self._shared
        with shared.switch.lock:
            shared.reseed(seed)
            net = VirtualNet(shared.now_us)
            net.add_switch(SWITCH_NAME, shared)
            for name in HOSTS:
                net.add_host(name, self._nics[name])
                net.link(name, (SWITCH_NAME, HOST_PORTS[name]), self.LINK_DELAY_US)
            pair = Pair(self._nics, self.host, mode, at, self._next_step(), net.now_us)
            for start in pair.start_times():
                net.call_at(start, lambda: pair.start_due(net.now_us))

            def done() -> bool:
                pair.collect(net.now_us)
                return pair.done

            ended = net.run(done, deadline_us=net.now_us + self._patience_us)
            if ended:
                net.run(deadline_us=net.now_us + 10_000)
            shared.now_us = net.now_us
        return self._finish(pair, mode, before, ended)


class _SharedSwitch:
    """A switch in virtual time that answers P4Runtime in real time between two runs."""

    def __init__(self, link: LinkSetting) -> None:
        self._random = random.Random()
        self.now_us = 0.0
        queue = QueueConfig(rate_bps=link.rate_bps, capacity=link.queue_packets)
        self.switch = Switch(
            device_id=1,
            rng=self._random.randint,
            queues=dict.fromkeys(HOST_PORTS.values(), queue),
        )
        self.server: P4RuntimeServer | None = None

    def reseed(self, seed: int) -> None:
        """Start the random source anew."""
        self._random.seed(seed)

    def packet_out(self, frame: bytes) -> None:
        """Take a packet-out between two runs, and answer at once."""
        with self.switch.lock:
            self.switch.packet_out(frame, self.now_us)
            for port, left in self.switch.advance(self.now_us):
                if port == self.switch.cpu_port and self.server is not None:
                    self.server.packet_in(left)

    def receive(self, port: int, frame: bytes, now_us: float) -> None:
        """Take a frame in."""
        self.switch.receive(port, frame, now_us)

    def advance(self, now_us: float) -> list[tuple[int, bytes]]:
        """Return what left."""
        return self.switch.advance(now_us)

    def next_departure(self) -> float | None:
        """Return when the next packet leaves."""
        return self.switch.next_departure()


@contextlib.contextmanager
def memory_rig(host: HostParams, link: LinkSetting, setting: JobSetting) -> Iterator[MemoryRig]:
    """Bring up the rig in memory, with a controller process beside it."""
    # gRPC's threads and the children forked below must not meet.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringstep-")))
        shared = _SharedSwitch(link)
        control = stack.enter_context(_controller(scratch, link, setting))
        server = serve(shared.switch, "127.0.0.1:0", packet_out=shared.packet_out)
        stack.callback(server.stop)
        shared.server = server
        control.add_switch(server.address)
        control.register(Mode.DCQCN)
        control.register(Mode.MARKER)
        yield MemoryRig(host, control, shared)
