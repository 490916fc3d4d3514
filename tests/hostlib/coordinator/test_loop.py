"""What waits for everything: whom it calls, and whom no more."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from ringstep.hostlib.coordinator.loop import FD_MAX, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


class Beyond:
    """Something with a descriptor that select(2) cannot wait for."""

    def fileno(self) -> int:
        return FD_MAX


def test_a_descriptor_that_became_another_s_meanwhile_calls_nobody(loop: Loop) -> None:
    """Both are readable; the one called first closes the other, whose number comes again."""
    called: list[str] = []
    ends = [socket.socketpair(), socket.socketpair()]
    fresh = socket.socketpair()

    def first(which: int) -> None:
        called.append("first")
        other = ends[1 - which][0]
        number = other.fileno()
        loop.forget(other)
        os.dup2(fresh[0].fileno(), number)  # as a connection accepted just now
        loop.watch(other, lambda: called.append("new"))
        loop.forget(ends[which][0])

    for which, (near, far) in enumerate(ends):
        loop.watch(near, lambda which=which: first(which))  # type: ignore[misc]
        far.send(b"x")
    loop.wait(5)
    assert called == ["first"]
    fresh[1].send(b"x")
    loop.wait(5)
    assert called == ["first", "new"]
    for pair in (*ends, fresh):
        for one in pair:
            one.close()


def test_a_descriptor_that_select_cannot_wait_for_is_refused(loop: Loop) -> None:
    with pytest.raises(OSError, match="descriptors are open"):
        loop.watch(Beyond(), lambda: None)
    loop.wait(0)
