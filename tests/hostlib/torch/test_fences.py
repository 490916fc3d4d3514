"""Fences over a group: ranks find their common communicators, and settle as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.hostlib.torch_fence import _common


class Ring:
    """An exchange among threads: the greatest and least of each word."""

    def __init__(self, size: int) -> None:
        self._words: list[Sequence[int]] = [()] * size
        self._barrier = threading.Barrier(size)
        self.rounds = 0

    def of(self, rank: int) -> Callable[[Sequence[int]], tuple[list[int], list[int]]]:
        def exchange(words: Sequence[int]) -> tuple[list[int], list[int]]:
            self._words[rank] = words
            self._barrier.wait(60)
            columns = list(zip(*self._words, strict=True))
            if rank == 0:
                self.rounds += 1
            self._barrier.wait(60)
            return [max(c) for c in columns], [min(c) for c in columns]

        return exchange


def on_all(size: int, call: Callable[[int], Any]) -> list[Any]:
    found: list[Any] = [None] * size
    threads = [
        threading.Thread(target=lambda r=r: found.__setitem__(r, call(r))) for r in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return found


IDS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 2)


@given(st.lists(st.sets(st.sampled_from(range(-4, 5)) | IDS, max_size=8), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_ranks_find_exactly_what_all_of_them_have(sets: list[set[int]]) -> None:
    ring = Ring(len(sets))
    found = on_all(len(sets), lambda rank: _common(sorted(sets[rank]), ring.of(rank)))
    assert found == [tuple(sorted(set.intersection(*sets)))] * len(sets)
    assert ring.rounds <= len(set.union(*sets)) + 1
