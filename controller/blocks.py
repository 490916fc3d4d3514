"""The state blocks of one switch: which are free, and which comes next.

A block that was never used comes first, lowest first; then the one given back longest ago. Both
are found in constant time, also where a block must not have had a given generation: free blocks
are kept in *runs* of one generation, so that the second run differs from the first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from ringstep.protocol.limits import GENERATION_BITS, MAX_BLOCKS

NO_GENERATION = 0
"""What a block that was never used holds in the data plane."""
_GROWTH = 256
"""Blocks for which room is made at once."""


class BlockPool:
    """The free blocks of one switch.

    ``past`` are (block, generation) of blocks once used, the one given back longest ago first;
    ``held`` those in use, in any order. A block may be in both: then it is in use.
    """

    def __init__(self, past: Iterable[tuple[int, int]] = (), held: Iterable[int] = ()) -> None:
        in_use = set(held)
        free = {block: generation for block, generation in past if block not in in_use}
        self._used = max((*in_use, *free), default=-1) + 1
        self._size = 0
        self._per_generation = [0] * (1 << GENERATION_BITS)
        # Of each block that was ever used. The three links are laid in the blocks themselves:
        # _next holds the next block of a run; at a run's first block _last holds the run's last
        # block, and _next_run the first block of the next run.
        self._generation = bytearray(self._used)
        self._next = array("H", bytes(2 * self._used))
        self._last, self._next_run = self._next[:], self._next[:]
        self._first_run = self._last_run = 0
        holes = (b for b in range(self._used) if b not in in_use and b not in free)
        for block in holes if len(in_use) + len(free) < self._used else ():
            self._put_back(block, NO_GENERATION)
        for block, generation in free.items():
            self._put_back(block, generation)

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return MAX_BLOCKS - self._used + self._size

    def free_without(self, generation: int) -> int:
        """Return how many free blocks did not have this generation the last time."""
        return self.free - self._per_generation[generation]

    def next_generations(self, count: int) -> set[int]:
        """Return the generations that the next ``count`` blocks had; at least as many are free.

        Those of blocks that were never used are left out: no job ever has that generation.
        """
        if count <= MAX_BLOCKS - self._used:
            return set()
        return {self._generation[b] for b in self._in_order(count - (MAX_BLOCKS - self._used))}

    def _in_order(self, count: int) -> Iterator[int]:
        run = block = self._first_run
        for left in range(count, 0, -1):
            yield block
            if block != self._last[run]:
                block = self._next[block]
            elif left > 1:
                run = block = self._next_run[run]

    def take(self, count: int, without: int = NO_GENERATION) -> list[int]:
        """Take the next ``count`` blocks, none of which had the generation ``without``.

        The caller has seen that :meth:`free_without` of it are as many.
        """
        fresh = min(count, MAX_BLOCKS - self._used)
        taken = list(range(self._used, self._used + fresh))
        self._used += fresh
        if self._used > len(self._generation):
            self._grow(self._used - len(self._generation) + _GROWTH)
        while len(taken) < count:
            if without and self._generation[self._first_run] == without:
                taken.append(self._pop_second_run())
            else:
                taken.append(self._pop_first_run())
        return taken

    def _grow(self, count: int) -> None:
        self._generation.extend(bytes(count))
        for links in (self._next, self._last, self._next_run):
            links.frombytes(bytes(2 * count))

    def give_back(self, block: int, generation: int) -> None:
        """Make a block free again; it had this generation."""
        assert block < self._used, "only what was taken is given back"
        self._put_back(block, generation)

    def _put_back(self, block: int, generation: int) -> None:
        self._generation[block] = generation
        self._per_generation[generation] += 1
        run = self._last_run
        if self._size and self._generation[run] == generation:
            self._next[self._last[run]] = block
            self._last[run] = block
        else:
            if self._size:
                self._next_run[run] = block
            else:
                self._first_run = block
            self._last[block] = block
            self._last_run = block
        self._size += 1

    def _pop_first_run(self) -> int:
        block = self._first_run
        if block != self._last[block]:
            self._first_run = self._shorten(block)
        elif block != self._last_run:
            self._first_run = self._next_run[block]
        self._popped(block)
        return block

    def _pop_second_run(self) -> int:
        first = self._first_run
        block = self._next_run[first]
        if block != self._last[block]:
            self._next_run[first] = self._shorten(block)
        elif block == self._last_run:
            self._last_run = first
        else:
            third = self._next_run[block]
            if self._generation[third] == self._generation[first]:
                # Nothing stands between the two any more: they become one run.
                self._next[self._last[first]] = third
                self._last[first] = self._last[third]
                if third == self._last_run:
                    self._last_run = first
                else:
                    self._next_run[first] = self._next_run[third]
            else:
                self._next_run[first] = third
        self._popped(block)
        return block

    def _shorten(self, run: int) -> int:
        """Make the second block of a run the first one of it."""
        rest = self._next[run]
        self._last[rest] = self._last[run]
        if run == self._last_run:
            self._last_run = rest
        else:
            self._next_run[rest] = self._next_run[run]
        return rest

    def _popped(self, block: int) -> None:
        self._size -= 1
        self._per_generation[self._generation[block]] -= 1
