"""Work of the "ringstep" backend: what a collective returns, and the thread that runs it.

The engine's calls block, so each process group has a thread that runs its collectives in the order
in which they were issued (:mod:`ringstep.hostlib.torch_backend`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from ringstep.hostlib.engine import BadArgument, Comm, Engine, EngineError

__all__ = ["EngineWork", "Step", "Worker"]

_FOREVER: Final = timedelta(0)
"""What torch passes where no timeout was given."""


class EngineWork(Work):
    """A collective that was issued. Callbacks of its future run on the group's thread."""

    def __init__(self, what: str, sequence: int, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.what = what
        self.collected = False
        """Whether it waits for the end of a coalescing block to be issued."""
        self._sequence = sequence
        self.tensors = tensors
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._issued: Any = torch.futures.Future()
        # A callback that raises is the one way to an error that C++ waiters (DDP) take for one.
        self._future = self._issued.then(self._outcome)

    def _outcome(self, _issued: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self.tensors

    def finish(self, error: BaseException | None = None) -> None:
        """Let the waiters go on; the group's thread calls it once."""
        self._error = error
        self._done.set()
        self._issued.set_result(None)

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Wait for the end; the tensors hold the result then.

        Args:
            timeout: how long at most; 0 for as long as the group's own timeout lets it run. A wait
                that gives up leaves the collective running.

        Raises:
            torch.distributed.DistBackendError: it failed, or the wait gave up.
        """
        if self.collected:
            raise dist.DistBackendError(
                f"{self.what}: not issued yet; it belongs to a coalescing block that has not ended"
            )
        seconds = timeout.total_seconds()
        if not self._done.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"{self.what}: not done within {seconds:g} s; it goes on")
        if self._error is not None:
            raise self._error
        self._future.wait()  # Set right after: whoever waited finds its value.
        return True

    def synchronize(self) -> None:
        """Wait, as there is no stream to wait on."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return why it failed, None where it did not or still runs."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors written to, once it has ended."""
        self.wait()
        return self.tensors

    def get_future(self) -> Any:
        """Return a future of the tensors written to."""
        return self._future

    def _get_sequence_number(self) -> int:
        return self._sequence


@dataclass(frozen=True)
class Step:
    """One call of the engine, and what is to be done with its result."""

    run: Callable[[Comm], None]
    after: Callable[[], None] | None = None


class Worker:
    """A group's thread: connects, runs what is submitted in order, leaves at the end."""

    def __init__(self, name: str, engine: Engine, connect: Callable[[], Comm]) -> None:
        """Start the thread, and wait until it is connected.

        Raises:
            torch.distributed.DistBackendError: the ranks could not be connected.
        """
        self._engine = engine
        self._jobs: queue.SimpleQueue[tuple[EngineWork, list[Step]] | None] = queue.SimpleQueue()
        self._connected = threading.Event()
        self._comm: Comm | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._leaving = False
        """What is submitted from then on would never run."""
        self._thread = threading.Thread(
            target=self._main, args=(name, connect), name=f"ringstep {name}", daemon=True
        )
        self._thread.start()
        try:
            self._connected.wait()
        except BaseException:
            self._jobs.put(None)  # Leave as soon as connected: nobody will use it.
            raise
        if self._failure is not None:
            raise dist.DistBackendError(f"{name}: {self._failure}") from self._failure

    @property
    def comm(self) -> Comm:
        """The communicator; its collectives are for :meth:`submit`."""
        assert self._comm is not None
        return self._comm

    def submit(self, work: EngineWork, steps: list[Step]) -> None:
        """Run the steps, as one group where there are several, after what was submitted before.

        Raises:
            torch.distributed.DistBackendError: the group was shut down, or is its parent's process.
        """
        with self._lock:
            if self._leaving or not self._thread.is_alive():
                raise dist.DistBackendError(f"{work.what}: the process group was shut down")
            self._jobs.put((work, steps))

    def abort(self) -> None:
        """End what runs and what waits, with an error."""
        if self._comm is not None:
            self._comm.abort()

    def stop(self, timeout_s: float | None = None) -> None:
        """Leave once everything submitted is done."""
        with self._lock:
            self._leaving = True
            self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _main(self, name: str, connect: Callable[[], Comm]) -> None:
        try:
            comm = self._comm = connect()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._connected.set()
        while (job := self._jobs.get()) is not None:
            work, steps = job
            outcome = self._run(comm, work.what, steps)
            del job, steps  # The tensors are the caller's again.
            work.finish(outcome)
            del work
        comm.close()

    def _run(self, comm: Comm, what: str, steps: list[Step]) -> BaseException | None:
        try:
            if len(steps) == 1:
                steps[0].run(comm)
            else:
                with self._engine.group():
                    for step in steps:
                        step.run(comm)
            for step in steps:
                if step.after is not None:
                    step.after()
        except EngineError as error:
            if not isinstance(error, BadArgument):
                comm.abort()  # Peers that wait for this rank learn it at once.
            failure: BaseException = dist.DistBackendError(f"{what}: {error}")
            failure.__cause__ = error
            return failure
        except BaseException as error:
            comm.abort()
            return error
        return None
