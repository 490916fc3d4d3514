"""The coordinator's process: one thread that waits for ranks, nodes, policy and operator."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.coordinator.agent import NodeAgent
from ringstep.hostlib.coordinator.control import ControlError, ControlServer, socket_path
from ringstep.hostlib.coordinator.files import Ending, open_file
from ringstep.hostlib.coordinator.fixed import by_place, read_table
from ringstep.hostlib.coordinator.group import entries_of
from ringstep.hostlib.coordinator.links import Down, Links, Up, Uplink
from ringstep.hostlib.coordinator.loop import Loop
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    Command,
    CommStatus,
    Event,
    Gpu,
    NodeHello,
    Offer,
    OfferState,
    Outcome,
    Records,
)
from ringstep.hostlib.coordinator.policies import make
from ringstep.hostlib.coordinator.policy import GpuFigures, Options, PolicyError
from ringstep.hostlib.coordinator.skeleton import Settings, Skeleton
from ringstep.hostlib.shm import DecisionTable

__all__ = ["Config", "Coordinator"]

_LOG: Final = logging.getLogger("ringstep.coordinator")

IDLE_S: Final = 0.1
"""Between looks at the file while nothing runs."""
ACTIVE_S: Final = 0.05
"""Between looks while collectives are reported."""
SCAN_SHARE: Final = 0.1
"""Of the time that may be spent looking, however many ranks there are."""
SCAN_LATE_S: Final = 0.05
"""Between looks while ranks are about to take an offer over, so that no look delays it."""
OFFER_S: Final = ((0.1, 0.0003), (2.0, 0.002), (float("inf"), 0.02))
"""While an offer is out: seconds since the ranks last moved, and what to wait between looks."""
SAY_APPLIED_S: Final = 10.0
"""Between lines of the log about switches on a node."""
GPU_S: Final = 0.5
"""Between GPU figures told to the skeleton."""


@dataclass(frozen=True, slots=True)
class Config:
    """What the command line says."""

    path: Path
    """Of the shared-memory file."""
    token: int = 0
    policy: str = "nccl"
    options: Options = field(default_factory=Options)
    settings: Settings = field(default_factory=Settings)
    fences: bool = False
    """Switch communicators of one node at fences too."""
    node: str = ""
    """This node's name; empty for the host's."""
    ready_fd: int | None = None
    for_s: float | None = None
    static: bool = False
    """Write the table of ``fixed:FILE`` as static table too, into a file that is new."""
    keep_file: bool = False
    """Leave the file when ending, for a coordinator to come."""
    call_log: Path | None = None
    """Written when ending: what the newest collectives of each kind took."""


class Coordinator:
    """Owns the job's file on this node, as skeleton or, with an uplink, as stub.

    Args:
        config: see there.
        links: to stubs, made with the loop once the file is ours; None for one node.
        uplink: to the skeleton; None for a skeleton.
        gpu: returns the newest figures of this node, None without a GPU.
        tell: gets one object for each thing that happens (``--json``).
        ending: the wish to end, where somebody else may have it too.

    Raises:
        PolicyError: the policy cannot be made.
        ShmError: the file cannot be had.
        ControlError: the control socket cannot be had.
        LinkError: the transport cannot be had.
    """

    def __init__(
        self,
        config: Config,
        *,
        links: Callable[[Loop, Config], Links] | None = None,
        uplink: Callable[[Loop, Config], Uplink] | None = None,
        gpu: Callable[[], GpuFigures | None] | None = None,
        tell: Callable[[dict[str, Any]], None] | None = None,
        ending: Ending | None = None,
    ) -> None:
        self.config = config
        self._gpu = gpu
        self._tell = tell or (lambda _: None)
        self._node = config.node or socket.gethostname()
        self._events: deque[tuple[str, Event]] = deque()
        self._ending = ending or Ending()
        self._dead = False
        self._next_scan = 0.0
        self._last_scan = 0.0
        self._next_gpu = 0.0
        self._active_until = 0.0
        self._ready_at = 0.0
        self.loop = Loop()
        self._ending.wakes(self.loop.wake)
        self.skeleton: Skeleton | None = None
        self._links: Links | None = None
        self._uplink: Uplink | None = None
        self._linked = False
        self._say_next: dict[str, float] = {}
        with ExitStack() as undo:
            undo.callback(self.loop.close)
            if uplink is None:
                self.skeleton = Skeleton(
                    lambda: make(config.policy, config.options),
                    config.settings,
                    self._send,
                    self.loop.wake,
                )
                undo.callback(self.skeleton.close)
            self.file, self.taken_over = open_file(config.path, config.token)
            undo.callback(self.file.close if self.taken_over else self.file.remove)
            self.static_digest = self._write_static() if config.static else None
            self.agent = NodeAgent(self.file, fences=config.fences)
            self._control = ControlServer(socket_path(config.path), self.loop, self._handle_request)
            undo.callback(self._control.close)
            if links is not None:
                self._links = links(self.loop, config)
            if uplink is not None:
                self._uplink = uplink(self.loop, config)
            undo.pop_all()
        if self.skeleton is not None:
            self._events.append((self._node, NodeHello(self.agent.last_epoch, self.agent.file_id)))

    def _write_static(self) -> int | None:
        """Return the digest of the static table; what ranks may have taken is not changed."""
        if not self.taken_over:
            name, _, argument = self.config.policy.partition(":")
            if name != "fixed":
                raise PolicyError(f"a static table is of policy fixed:FILE, not {name}")
            rules = read_table(self.config.options.folder / argument)
            return self.file.write_static(DecisionTable(entries_of(by_place(rules))))
        found = self.file.static_table()
        return None if found is None else found.digest(0)

    # --- the process ---

    def run(self) -> None:
        """Work until told to end: by signal, by the control socket, or after a while."""
        try:
            self._say_ready()
            while not self._ending.asked:
                self.turn()
                if not self._ending.asked:
                    self.loop.wait(self._wait_s())
                    self._end_in_time()
        except BaseException:
            self.close(keep_file=True)  # for the coordinator that is started in its place
            raise
        self.close()

    def stop(self) -> None:
        """End soon; from any thread."""
        self._ending.ask()

    def _say_ready(self) -> None:
        self._ready_at = time.monotonic()
        place = self._links or self._uplink
        line = {
            "event": "ready",
            "pid": os.getpid(),
            "shm": str(self.file.path),
            "control": str(self._control.path),
            "role": "stub" if self.skeleton is None else "skeleton",
            "taken_over": self.taken_over,
            "static_digest": None if self.static_digest is None else f"{self.static_digest:x}",
            "address": place.address if place is not None else None,
        }
        self._tell(line)
        if self.config.ready_fd is not None:
            try:
                os.write(self.config.ready_fd, json.dumps(line).encode() + b"\n")
                os.close(self.config.ready_fd)
            except OSError as error:
                _LOG.warning("--ready-fd %d: %s", self.config.ready_fd, error.strerror)

    def _end_in_time(self) -> None:
        limit = self.config.for_s
        if limit is not None and time.monotonic() - self._ready_at >= limit:
            self._ending.ask()

    def close(self, *, keep_file: bool = False) -> None:
        """Withdraw what is not committed, remove file and socket; what is in force stays."""
        if self._dead:
            return
        self._dead = True
        self.agent.abandon_all()
        for link in (self._links, self._uplink):
            if link is not None:
                link.close()
        if self.skeleton is not None:
            self._save_calls(self.skeleton)
            self.skeleton.close()
        self._control.close()
        if keep_file or self.config.keep_file:
            self.file.close()
        else:
            self.file.remove()
        self.loop.close()
        self._tell({"event": "end"})

    def _save_calls(self, skeleton: Skeleton) -> None:
        path = self.config.call_log
        if path is None:
            return
        try:
            skeleton.calls.save(path)
        except OSError as error:  # the job has ended: nothing else may suffer from it
            _LOG.warning("--call-log %s: %s", path, error.strerror)

    # --- one round ---

    def _wait_s(self) -> float:
        now = time.monotonic()
        waits = [max(self._next_scan - now, 0.0)]
        age = self.agent.offer_age()
        if age is not None:
            waits.append(next(wait for limit, wait in OFFER_S if age < limit))
        waits += [
            link.poll_s
            for link in (self._links, self._uplink)
            if link is not None and link.poll_s is not None
        ]
        return min(waits)

    def turn(self) -> None:
        """Do everything that is due, without waiting."""
        now = time.monotonic()
        found: list[Event] = []
        if self.agent.offers_out:
            found += self.agent.check_offers()
        age = self.agent.offer_age()
        if age is not None and age < OFFER_S[0][0] and now - self._last_scan < SCAN_LATE_S:
            self._next_scan = max(self._next_scan, self._last_scan + SCAN_LATE_S)
        if now >= self._next_scan:
            self._last_scan = now
            learns = self.skeleton is None or not self.skeleton.policy.static
            self.agent.look_closely(learns)
            found += self.agent.scan()
            if any(isinstance(event, Records) for event in found):
                self._active_until = now + 1.0
            pause = ACTIVE_S if learns and now < self._active_until else IDLE_S
            self._next_scan = now + max(pause, (time.monotonic() - now) / SCAN_SHARE)
        if self._gpu is not None and now >= self._next_gpu:
            self._next_gpu = now + GPU_S
            found.append(Gpu(self._gpu()))
        if self.skeleton is not None:
            self._compute(self.skeleton, found)
        else:
            self._relay(found)

    def _compute(self, skeleton: Skeleton, found: list[Event]) -> None:
        self._events.extend((self._node, event) for event in found)
        if self._links is not None:
            self._events.extend(self._links.poll())
        faulty = skeleton.fault
        for _ in range(100):  # an outcome may be answered by an offer, and that by an outcome
            while self._events:
                node, event = self._events.popleft()
                skeleton.event(node, event)
                self._report(node, event)
            skeleton.step()
            if not self._events:
                break
        if skeleton.fault is not None and faulty is None:
            self._tell({"event": "bypass", "reason": skeleton.fault})

    def _relay(self, found: list[Event]) -> None:
        assert self._uplink is not None
        for command in self._uplink.poll():
            if isinstance(command, Up):
                self._linked = True
                self.agent.abandon_all()
                self.agent.forget()
                self._uplink.send(NodeHello(self.agent.last_epoch, self.agent.file_id))
                self._next_scan = 0.0
                found = []  # told anew by the next look
                self._tell({"event": "linked"})
            elif isinstance(command, Down):
                self._linked = False
                self.agent.abandon_all()
                _LOG.warning("link to the skeleton lost: %s; what is in force stays",
                             command.reason)  # fmt: skip
                self._tell({"event": "unlinked", "reason": command.reason})
            else:
                found += self.agent.handle(command)
        if self._linked:
            for event in found:
                self._uplink.send(event)
                self._report(self._node, event)

    def _send(self, node: str, command: Command) -> None:
        if node == self._node:
            self._events.extend((node, event) for event in self.agent.handle(command))
        elif self._links is not None:
            self._links.send(node, command)
        if isinstance(command, Offer):
            self._tell({"event": "offer", "node": node, "block": command.where[0],
                        "epoch": command.epoch})  # fmt: skip
        elif isinstance(command, Abandon):
            self._tell({"event": "abandon", "node": node, "block": command.where[0],
                        "epoch": command.epoch})  # fmt: skip

    def _report(self, node: str, event: Event) -> None:
        if isinstance(event, Outcome):
            self._tell({
                "event": event.state.value, "node": node, "block": event.where[0],
                "epoch": event.epoch, "reasons": list(event.reasons),
                "ms": round(event.took_ms, 3),
            })  # fmt: skip
            if event.state is OfferState.APPLIED:
                self._say_applied(node, event)
        elif isinstance(event, CommStatus) and event.table is not None:
            _LOG.debug("found epoch %s in force on %s", event.epoch, node)

    def _say_applied(self, node: str, event: Outcome) -> None:
        """Log a switch; a search makes hundreds, of which one line in ten seconds is enough."""
        now = time.monotonic()
        quiet = now < self._say_next.get(node, 0.0)
        if not quiet:
            self._say_next[node] = now + SAY_APPLIED_S
        _LOG.log(logging.DEBUG if quiet else logging.INFO,
                 "communicator %d: all ranks on %s apply epoch %d", event.where[0], node,
                 event.epoch)  # fmt: skip

    # --- the operator ---

    def _handle_request(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request["do"]
        if what == "status":
            return self.status()
        if what == "stop":
            self.stop()
            return {}
        if what not in ("calls", "policy", "bypass"):
            raise ControlError(f"{what!r}: status, calls, policy, bypass or stop")
        if self.skeleton is None:
            assert self._uplink is not None
            raise ControlError(
                f"this node's coordinator is a stub: ask the skeleton ({self._uplink.address})"
            )
        if what == "calls":
            return self.skeleton.calls.to_dict()
        try:
            if what == "policy":
                name = request.get("name")
                if not isinstance(name, str):
                    raise ControlError('"name" is missing')
                wanted = name
                self.skeleton.switch_policy(lambda: make(wanted, self.config.options))
                return {"policy": self.skeleton.policy.name}
            if not isinstance(request.get("on"), bool):
                raise ControlError('"on" is true or false')
            self.skeleton.set_bypass(request["on"])
            return {"bypass": self.skeleton.bypassed}
        except PolicyError as error:
            raise ControlError(str(error)) from error

    def status(self) -> dict[str, Any]:
        """Return the state of everything."""
        place = self._links or self._uplink
        common = {
            "pid": os.getpid(),
            "shm": str(self.file.path),
            "node": self._node,
            "role": "stub" if self.skeleton is None else "skeleton",
            "address": place.address if place is not None else None,
            "linked": self._linked if self.skeleton is None else None,
            "last_epoch": self.agent.last_epoch,
            "offers_out": self.agent.offers_out,
            "records_unplaced": self.agent.unplaced,
        }
        return {**common, **(self.skeleton.status() if self.skeleton is not None else {})}
