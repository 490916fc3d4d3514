"""Skeleton and stubs over MPI: one process by node, rank 0 is the skeleton.

``mpiexec -n NODES -ppn 1 ringstep tuner coordinator --mpi …``. MPI's launcher vouches for who takes
part; the token is compared all the same, so that two jobs are never mixed. MPI tells nothing of a
peer that died, so both sides send a sign of life, and a peer that is silent is given up.
"""

from __future__ import annotations

import hmac
import importlib
import time
from collections import deque
from typing import Any, Final

from ringstep.hostlib.coordinator import wire
from ringstep.hostlib.coordinator.links import Down, LinkError, Up
from ringstep.hostlib.coordinator.messages import Abandon, Command, Event, NodeGone, Offer, Records
from ringstep.hostlib.coordinator.wire import Refused, WireError

__all__ = ["MpiLinks", "MpiUplink", "node_name", "world"]

TAG: Final = 0x5247
POLL_S: Final = (0.002, 0.025)
"""Between looks for messages: within a second of one, and else."""
PING_S: Final = 1.0
SILENCE_S: Final = 10.0
_PROOF: Final = b"ringstep mpi"


def world() -> Any:
    """Return MPI's communicator of all processes.

    Raises:
        LinkError: mpi4py is not installed, or MPI does not start.
    """
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # not installed, or without an MPI library
        raise LinkError(
            "--mpi needs mpi4py and an MPI library (pip install mpi4py mpich); or use --listen and "
            f"--skeleton ({error})"
        ) from error
    return mpi.COMM_WORLD


class _Mail:
    """Messages between this process and others, never waiting."""

    def __init__(self, comm: Any, token: int) -> None:
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._comm = comm
        self._proof = wire.hello_mac(token, _PROOF)[:16]
        self._sending: deque[Any] = deque()
        self._busy_until = 0.0

    @property
    def poll_s(self) -> float:
        """How often :meth:`receive` should be called: MPI has nothing to wait for."""
        return POLL_S[0] if time.monotonic() < self._busy_until else POLL_S[1]

    def _note(self, message: bytes) -> None:
        if wire.urgent(message):
            self._busy_until = time.monotonic() + 1.0

    def send(self, to: int, message: bytes) -> None:
        """Send, now or later."""
        self._note(message)
        content = self._proof + message
        self._sending.append((self._comm.Isend([content, self._mpi.BYTE], to, TAG), content))
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()

    def receive(self) -> list[tuple[int, bytes]]:
        """Return what came, with the rank that it came from."""
        found = []
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, TAG, status):
            content = bytearray(status.Get_count(self._mpi.BYTE))
            source = status.Get_source()
            self._comm.Recv([content, self._mpi.BYTE], source, TAG)
            if hmac.compare_digest(bytes(content[:16]), self._proof):
                self._note(bytes(content[16:]))
                found.append((source, bytes(content[16:])))
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()
        return found

    def close(self) -> None:
        """Leave what nobody takes any more."""
        end = time.monotonic() + 1.0
        while self._sending and time.monotonic() < end:
            if self._sending[0][0].Test():
                self._sending.popleft()
            else:
                time.sleep(POLL_S[0])
        for request, _ in self._sending:
            request.Cancel()


class MpiLinks:
    """The skeleton's side.

    Args:
        comm: of all processes.
        token: of the job.
    """

    def __init__(self, comm: Any, token: int) -> None:
        self._mail = _Mail(comm, token)
        self._peers = range(1, comm.Get_size())
        self._heard: dict[int, float] = {}
        self._next_ping = 0.0
        self.address = f"MPI, {comm.Get_size()} processes"

    @property
    def poll_s(self) -> float | None:
        """How often :meth:`poll` must be called."""
        return self._mail.poll_s

    def poll(self) -> list[tuple[str, Event]]:
        """Return what nodes told, and their coming and going."""
        now = time.monotonic()
        found: list[tuple[str, Event]] = []
        for source, raw in self._mail.receive():
            try:
                message = wire.decode(raw)
            except WireError:
                continue
            self._heard[source] = now
            if isinstance(message, Refused):  # its way to say goodbye
                del self._heard[source]
                found.append((node_name(source), NodeGone(message.reason)))
            elif message is not None and not isinstance(message, Offer | Abandon):
                found.append((node_name(source), message))
        for source, heard in list(self._heard.items()):
            if now - heard > SILENCE_S:
                del self._heard[source]
                found.append((node_name(source), NodeGone(f"nothing heard for {SILENCE_S:g} s")))
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            for peer in self._peers:
                self._mail.send(peer, wire.encode(None))
        return found

    def send(self, node: str, command: Command) -> None:
        """Pass a command to a node."""
        self._mail.send(int(node.rpartition(" ")[2]), wire.encode(command))

    def close(self) -> None:
        """Tell the stubs and leave."""
        for peer in self._peers:
            self._mail.send(peer, wire.encode(Refused("the skeleton has ended")))
        self._mail.close()


def node_name(rank: int) -> str:
    """Return what a node is called that is a rank of MPI."""
    return f"rank {rank}"


class MpiUplink:
    """A stub's side; arguments as :class:`MpiLinks`."""

    address = "rank 0 of MPI"

    def __init__(self, comm: Any, token: int) -> None:
        self._mail = _Mail(comm, token)
        self._heard: float | None = None
        self._next_ping = 0.0

    @property
    def poll_s(self) -> float | None:
        """How often :meth:`poll` must be called."""
        return self._mail.poll_s

    def poll(self) -> list[Command | Up | Down]:
        """Return what the skeleton wants, and the link's coming and going."""
        now = time.monotonic()
        found: list[Command | Up | Down] = []
        for source, raw in self._mail.receive():
            try:
                message = wire.decode(raw)
            except WireError:
                continue
            if source != 0:
                continue
            if isinstance(message, Refused):
                self._heard = None
                found.append(Down(message.reason))
                continue
            if self._heard is None:
                found.append(Up())
            self._heard = now
            if isinstance(message, Offer | Abandon):
                found.append(message)
        if self._heard is not None and now - self._heard > SILENCE_S:
            self._heard = None
            found.append(Down(f"nothing heard for {SILENCE_S:g} s"))
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            if self._heard is not None:
                self._mail.send(0, wire.encode(None))
        return found

    def send(self, event: Event) -> None:
        """Tell the skeleton."""
        messages: list[Event] = list(wire.split(event)) if isinstance(event, Records) else [event]
        for message in messages:
            self._mail.send(0, wire.encode(message))

    def close(self) -> None:
        """Say goodbye and leave."""
        self._mail.send(0, wire.encode(Refused("the stub has ended")))
        self._mail.close()
