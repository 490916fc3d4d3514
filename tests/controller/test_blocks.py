"""Blocks come in the order in which they were given back, whatever generation is avoided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringstep.controller.blocks import BlockPool
from ringstep.protocol.limits import MAX_BLOCKS


def used_up(past: list[tuple[int, int]]) -> BlockPool:
    """Return a pool of which all blocks are in use but ``past``."""
    return BlockPool(past, set(range(MAX_BLOCKS)) - {block for block, _ in past})


def test_unused_blocks_come_first_from_the_lowest() -> None:
    pool = BlockPool([(0, 3), (2, 3)], held=[1])
    assert pool.free == MAX_BLOCKS - 1
    assert pool.take(2) == [3, 4]


def test_block_that_is_held_and_past_is_held() -> None:
    pool = used_up([(5, 1)])
    assert BlockPool([(5, 1), (6, 1)], held=range(6)).free == MAX_BLOCKS - 6
    assert pool.free == 1
    assert pool.take(1) == [5]
    assert pool.free == 0


def test_blocks_lost_in_a_crash_are_free() -> None:
    pool = BlockPool([], held=[3, *range(4, MAX_BLOCKS)])
    assert pool.free == 3
    assert pool.take(3, without=7) == [0, 1, 2]


def test_all_blocks_can_be_taken_and_given_back() -> None:
    pool = BlockPool()
    assert pool.take(MAX_BLOCKS) == list(range(MAX_BLOCKS))
    for block in reversed(range(MAX_BLOCKS)):
        pool.give_back(block, 1 + block % 255)
    assert pool.take(MAX_BLOCKS) == list(reversed(range(MAX_BLOCKS)))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(0, 50), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(1, 4), st.integers(0, 3)),
    ),
    max_size=120,
)


@given(STEPS)
def test_pool_behaves_like_a_list(steps: list[tuple[str, int, int]]) -> None:
    """Against a model that scans: the first block of the list that does not have the generation."""
    start = [(block, 1 + block // 5 % 3) for block in range(0, 60, 2)]
    pool, free = used_up(start), list(start)
    held = sorted(set(range(60)) - {block for block, _ in start})
    for step, number, generation in steps:
        if step == "give":
            if held:
                block = held.pop(number % len(held))
                pool.give_back(block, generation)
                free.append((block, generation))
        elif pool.free_without(generation) >= number:
            expected = [item for item in free if item[1] != generation][:number]
            assert pool.next_generations(number) == {g for _, g in free[:number]}
            assert pool.take(number, generation) == [block for block, _ in expected]
            free = [item for item in free if item not in expected]
            held += [block for block, _ in expected]
        assert pool.free == len(free)
