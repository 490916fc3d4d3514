"""Brings a whole lab up on Mininet and takes it down again, whatever happens in between.

Order: interfaces, namespaces and links (Mininet), switch processes, topology file, controller.
Everything carries the lab's mark, so that what an untidy end leaves behind can be found
(:mod:`ringstep.lab.leftovers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringstep.fabric.units import format_mac
from ringstep.lab.leafspine import LINK_MARGIN, Engine, HostSite, LeafSpine
from ringstep.lab.leftovers import (
    ALIAS,
    MARK,
    Owner,
    announced_interfaces,
    marked_interfaces,
    present_interfaces,
    read_state,
    remove_leftovers,
    remove_state,
    state_path,
)
from ringstep.lab.mininet_env import LabUnavailable, find_bmv2, load_mininet, require_lab
from ringstep.lab.netns import no_offloads
from ringstep.lab.priority import Scheduling, prefer
from ringstep.lab.processes import Child, ChildFailed, Process, ringstep
from ringstep.lab.results import write_atomically

if TYPE_CHECKING:
    from ringstep.lab.switches import ProcessSwitch

MTU: Final = 9500
PROGRAMMED_TIMEOUT_S: Final = 120.0


class LabFailed(RuntimeError):
    """The lab could not be brought up, or a part of it ended; the text says which and why."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host of a running lab."""

    site: HostSite
    pid: int
    """Process whose network namespace holds the host's interface."""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """A process of a running lab."""

    name: str
    what: str
    pid: int
    address: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunningLab:
    """Where everything is: enough to use a lab, also from another process than its owner's."""

    fabric: LeafSpine
    controller: str
    topology_toml: str
    hosts: dict[str, HostPlace]
    parts: tuple[PartPlace, ...]
    scheduling: Scheduling
    """What the switches got; NICs take the same."""

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        shape = {
            name: getattr(self.fabric, name)
            for name in (
                "hosts", "leaves", "spines", "rate_bps", "oversubscription", "payload",
                "queue_packets", "spaced",
            )
        }  # fmt: skip
        return {
            "fabric": {**shape, "engine": str(self.fabric.engine)},
            "controller": self.controller,
            "topology_toml": self.topology_toml,
            "scheduling": str(self.scheduling),
            "hosts": {name: place.pid for name, place in self.hosts.items()},
            "parts": [
                [part.name, part.what, part.pid, part.address, part.note] for part in self.parts
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunningLab:
        """Return the lab that a state file describes."""
        shape = dict(data["fabric"])
        shape["engine"] = Engine(shape["engine"])
        fabric = LeafSpine(**shape)
        return cls(
            fabric=fabric,
            controller=data["controller"],
            topology_toml=data["topology_toml"],
            hosts={
                name: HostPlace(fabric.host_sites[name], pid) for name, pid in data["hosts"].items()
            },
            parts=tuple(PartPlace(*part) for part in data["parts"]),
            scheduling=Scheduling(data["scheduling"]),
        )


def running_lab() -> RunningLab | None:
    """Return the lab that runs on this machine, or None."""
    state = read_state()
    return None if state is None or "lab" not in state else RunningLab.from_json(state["lab"])


class MininetLab:
    """A lab that this process owns."""

    def __init__(self, fabric: LeafSpine, scratch: Path, net: Any, scheduling: Scheduling) -> None:
        self.fabric = fabric
        self.scheduling = scheduling
        """What to ask the kernel for."""
        self.scratch = scratch
        self.net = net
        """The ``mininet.net.Mininet``."""
        self.switches: dict[str, ProcessSwitch] = {}
        self.controller: Child | None = None
        self._where: RunningLab | None = None

    @property
    def where(self) -> RunningLab:
        """Where everything is."""
        assert self._where is not None, "only a lab that is up has places"
        return self._where

    def build(self) -> None:
        """Make namespaces, interfaces and links, and give hosts their addresses."""
        from mininet.link import TCLink

        from ringstep.lab.switches import SWITCH_CLASSES

        fabric = self.fabric
        for site in fabric.host_sites.values():
            self.net.addHost(site.name, ip=None, mac=format_mac(site.mac))
        for switch in fabric.switch_sites.values():
            self.switches[switch.name] = self.net.addSwitch(
                switch.name,
                cls=SWITCH_CLASSES[fabric.engine],
                site=switch,
                fabric=fabric,
                scratch=self.scratch,
                dpid=f"{switch.device_id:x}",
            )
        for cable in fabric.cables:
            link = self.net.addLink(
                cable.a,
                cable.b,
                port1=cable.a_port,
                port2=cable.b_port,
                cls=TCLink,
                bw=cable.rate_bps * LINK_MARGIN / 1e6,
            )
            self._mark(link.intf1.name)
            if cable.b in fabric.switch_sites:
                self._mark(link.intf2.name)
        self._check_rate_limits()
        self.net.build()
        for site in fabric.host_sites.values():
            self._route(site)

    def _check_rate_limits(self) -> None:
        """Mininet only logs where the kernel refuses a rate limit."""
        interface = self.fabric.root_interfaces[0]
        shown = subprocess.run(
            ["tc", "qdisc", "show", "dev", interface], capture_output=True, text=True, check=False
        )
        if "htb" not in shown.stdout:
            raise LabUnavailable("this kernel cannot limit a link's rate: it needs HTB (sch_htb)")

    def _mark(self, interface: str) -> None:
        alias = f"{ALIAS} {os.environ[MARK]}"
        done = subprocess.run(
            ["ip", "link", "set", "dev", interface, "mtu", str(MTU), "alias", alias],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise LabFailed(f"interface {interface}: {done.stderr.strip()}")
        # Neighbour discovery would be dropped by the pipeline, and is noise in every count.
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")

    def _route(self, site: HostSite) -> None:
        """Send everything to the leaf: the pipeline answers no ARP."""
        node = self.net[site.name]
        gateway = format_mac(self.fabric.gateway_mac(site.name))
        commands = [
            f"ip link set dev {site.interface} mtu {MTU} up",
            f"ip address replace {site.ip}/32 dev {site.interface}",
            f"sysctl -qw net.ipv6.conf.{site.interface}.disable_ipv6=1",
            f"ip route replace default via 10.255.255.254 dev {site.interface} onlink",
            f"ip neigh replace 10.255.255.254 lladdr {gateway} dev {site.interface} nud permanent",
        ]
        for command in commands:
            node.cmd(f"{command} 2>/dev/null")
        no_offloads(node.pid, site.interface)

    def start(self) -> None:
        """Start switches and controller, and wait until every switch is programmed."""
        # gRPC's threads in this process and the children forked later must not meet.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        self.net.start()
        for switch in self.switches.values():
            switch.wait_ready()
        topology = self.scratch / "topology.toml"
        topology.write_text(
            self.fabric.topology_toml({s.name: s.p4runtime for s in self.switches.values()})
        )
        store = f"sqlite:///{self.scratch / 'controller.sqlite3'}"
        self.controller = Child(
            "controller",
            ringstep(
                "controller", "serve", "--topology", str(topology), "--db", store,
                "--listen", "127.0.0.1:0",
            ),
            self.scratch,
        )  # fmt: skip
        target = str(self.controller.wait_ready()["listen"])
        self._wait_programmed(target)
        self._where = RunningLab(
            fabric=self.fabric,
            controller=target,
            topology_toml=topology.read_text(),
            hosts={
                name: HostPlace(site, self.net[name].pid)
                for name, site in self.fabric.host_sites.items()
            },
            parts=(*self._switch_parts(), self._controller_part(target)),
            scheduling=self._schedule(),
        )

    def _schedule(self) -> Scheduling:
        if self.scheduling is Scheduling.REALTIME and prefer(
            switch.process.pid for switch in self.switches.values() if switch.process is not None
        ):
            return Scheduling.REALTIME
        return Scheduling.NORMAL

    def _switch_parts(self) -> Iterator[PartPlace]:
        for switch in self.switches.values():
            assert switch.process is not None
            note = "" if switch.paced_by_switch else "paced by the kernel alone (no Thrift)"
            yield PartPlace(
                switch.name, str(self.fabric.engine), switch.process.pid, switch.p4runtime, note
            )

    def _controller_part(self, target: str) -> PartPlace:
        assert self.controller is not None
        return PartPlace("controller", "controller", self.controller.pid, target)

    def _wait_programmed(self, target: str) -> None:
        import asyncio

        from ringstep.controller.client import ControllerClient, ControllerError, NotProgrammedError

        async def wait() -> None:
            async with ControllerClient(target) as client:
                await client.wait_switches(timeout_s=PROGRAMMED_TIMEOUT_S)

        try:
            asyncio.run(wait())
        except (ControllerError, NotProgrammedError) as error:
            self.check()
            raise LabFailed(f"the switches were not programmed: {error}") from None

    def check(self) -> None:
        """Raise ChildFailed if a switch or the controller has ended."""
        for switch in self.switches.values():
            if switch.process is not None:
                switch.process.check()
        if self.controller is not None:
            self.controller.check()

    def stop(self) -> None:
        """Take everything down; safe at any stage of bringing it up."""
        processes: list[Process] = [
            switch.process for switch in self.switches.values() if switch.process is not None
        ]
        if self.controller is not None:
            processes.append(self.controller)
        for process in processes:
            process.terminate()
        for process in processes:
            process.stop()
        # Mininet asks shells that may be dead by now; what it leaves is found by its mark.
        with contextlib.suppress(Exception):
            self.net.stop()


@contextlib.contextmanager
def mininet_lab(
    fabric: LeafSpine, scheduling: Scheduling = Scheduling.REALTIME
) -> Iterator[MininetLab]:
    """Bring a lab up for the length of the block; leaving it leaves nothing behind.

    Raises:
        LabUnavailable: this machine cannot run one, or one runs already.
        LabFailed, ChildFailed: it did not come up.
    """
    require_lab()
    if read_state() is not None:
        raise LabUnavailable(
            "a lab is up on this machine already; stop it with `ringstep lab down`"
        )
    if fabric.engine is Engine.BMV2:
        find_bmv2()
    if stale := marked_interfaces() or announced_interfaces():
        raise LabUnavailable(
            f"an earlier lab left {', '.join(stale[:4])} behind; clean up with `ringstep lab down`"
        )
    if taken := present_interfaces(fabric.root_interfaces):
        raise LabUnavailable(
            f"interfaces of the lab's names exist already: {', '.join(taken[:4])}; if they are of "
            "a Mininet of yours, end it first"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_mark_environment())
        stack.callback(remove_state)
        stack.callback(_without_interrupts, remove_leftovers)
        _write_state({"interfaces": list(fabric.root_interfaces)})
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringstep-lab-")))
        lab = MininetLab(fabric, scratch, _empty_net(), scheduling)
        stack.callback(_without_interrupts, lab.stop)
        try:
            lab.build()
            lab.start()
        except (LabFailed, ChildFailed, LabUnavailable):
            raise
        except Exception as error:
            # Mininet raises plain exceptions.
            raise LabFailed(f"Mininet: {str(error).strip()}") from error
        _write_state({"interfaces": list(fabric.root_interfaces), "lab": lab.where.to_json()})
        yield lab


def _empty_net() -> Any:
    load_mininet()
    from mininet.log import setLogLevel
    from mininet.net import Mininet

    setLogLevel("critical")
    return Mininet(controller=None, build=False)


def _write_state(extra: dict[str, Any]) -> None:
    owner = Owner.me()
    state = {"owner": {"pid": owner.pid, "started": owner.started}, **extra}
    write_atomically(state_path(), json.dumps(state, indent=2) + "\n")


@contextlib.contextmanager
def _mark_environment() -> Iterator[None]:
    """Let every process started meanwhile carry the lab's mark."""
    os.environ[MARK] = secrets.token_hex(4)
    try:
        yield
    finally:
        del os.environ[MARK]


def _without_interrupts(clean_up: Any) -> None:
    """Clean up to the end, even if the user has no patience."""
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        clean_up()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
