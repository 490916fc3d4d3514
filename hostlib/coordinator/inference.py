"""The thread on which the policy runs, with bounded queues and an eye on the clock.

Nothing of a policy can hold up anything else: it may hang, raise or be slow, and is then left. A
thread that hangs cannot be ended from outside; it is abandoned with what it holds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ringstep.hostlib.coordinator.policy import CallKey, Policy, Sample
from ringstep.hostlib.shm import Decision, DecisionTable

__all__ = ["Answer", "Inference"]

_T = TypeVar("_T")

JOIN_S: Final = 0.2
"""What the end of the thread is waited for."""
BATCH: Final = 64
"""Samples learned from before questions are looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy said."""

    key: CallKey
    version: int
    decision: Decision | None
    at: float
    """Monotonic seconds."""


class Inference:
    """Runs one policy.

    Args:
        policy: to run.
        wake: called on the policy's thread when there are answers, or a fault.
        backlog: samples waiting at most; the oldest are dropped.
        limit_s: what one call may take.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        policy: Policy,
        wake: Callable[[], None],
        *,
        backlog: int = 4096,
        limit_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.version = policy.version
        self.dropped = 0
        """Samples that the policy was too slow for."""
        self.observed = 0
        self._wake = wake
        self._limit_s = limit_s
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=backlog)
        self._questions: dict[tuple[str, int, int], CallKey] = {}
        self._answers: deque[Answer] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._busy_since: float | None = None
        self._fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="ringstep-policy", daemon=True)
        self._thread.start()

    # --- for the coordinator's thread ---

    @property
    def fault(self) -> str | None:
        """Why the policy is out of use, None while it works."""
        since = self._busy_since
        if self._fault is None and since is not None:
            busy = self._clock() - since
            if busy > self._limit_s:
                self._fault = f"has not answered for {busy:.1f} s, {self._limit_s:g} s are allowed"
        return self._fault

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting for the policy."""
        return not self._questions and not self._samples and self._busy_since is None

    def observe(self, sample: Sample) -> None:
        """Hand over a sample; the oldest one is dropped where the policy does not keep up."""
        with self._changed:
            if len(self._samples) == self._samples.maxlen:
                self.dropped += 1
            self._samples.append(sample)
            self._changed.notify()

    def ask(self, key: CallKey) -> None:
        """Ask what to do for a key; asking again replaces a question that still waits."""
        with self._changed:
            self._questions[key.place] = key
            self._changed.notify()

    def answers(self) -> list[Answer]:
        """Return what was answered since the last call."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._answers.popleft())
        return found

    def close(self) -> None:
        """End the thread; one that hangs is left behind."""
        with self._changed:
            self._ending = True
            self._samples.clear()
            self._questions.clear()
            self._changed.notify()
        if self._fault is None:
            self._thread.join(timeout=min(self._limit_s, JOIN_S))

    # --- the policy's thread ---

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._samples or self._questions or self._ending):
                        self._changed.wait()
                    if self._ending:
                        return
                self._learn()
                self._answer()
        except Exception as error:
            self._fault = self._fault or f"failed: {type(error).__name__}: {error}"
            self._busy_since = None
            self._wake()

    def _learn(self) -> None:
        for _ in range(BATCH):
            try:
                sample = self._samples.popleft()
            except IndexError:
                break
            self._timed(lambda one=sample: self.policy.observe(one))  # type: ignore[misc]
            self.observed += 1
        version = self.policy.version
        if version != self.version:
            self.version = version
            self._wake()

    def _answer(self) -> None:
        with self._changed:
            questions, self._questions = self._questions, {}
        for key in questions.values():
            version = self.policy.version
            decision = self._timed(lambda one=key: self.policy.process(one))  # type: ignore[misc]
            if decision is not None:
                if not isinstance(decision, Decision):
                    raise TypeError(f"process() returned {decision!r}, not a Decision or None")
                DecisionTable().set(key.collective, key.size_class, decision)  # raises where wrong
            self._answers.append(Answer(key, version, decision, self._clock()))
            if self._ending:
                return
        if questions:
            self._wake()

    def _timed(self, call: Callable[[], _T]) -> _T:
        started = self._clock()
        self._busy_since = started
        result = call()
        self._busy_since = None
        took = self._clock() - started
        if took > self._limit_s:
            raise TimeoutError(f"one call took {took:.1f} s, {self._limit_s:g} s are allowed")
        return result
