"""Edge colouring: even at every vertex, for every number of colours, the same every time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.fabric.coloring import equitable_coloring, halve, proper_coloring

EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120)


@given(EDGES, st.integers(1, 17))
def test_every_vertex_has_every_color_as_often_as_even_as_can_be(
    edges: list[tuple[int, int]], colors: int
) -> None:
    chosen = equitable_coloring(edges, colors)
    assert len(chosen) == len(edges)
    assert all(0 <= color < colors for color in chosen)
    for side in (0, 1):
        degree = Counter(edge[side] for edge in edges)
        times = Counter((edge[side], color) for edge, color in zip(edges, chosen, strict=True))
        for vertex, count in degree.items():
            for color in range(colors):
                assert count // colors <= times[vertex, color] <= -(-count // colors)


@given(EDGES, st.integers(1, 9))
def test_each_round_of_edges_of_a_vertex_has_different_colors(
    edges: list[tuple[int, int]], colors: int
) -> None:
    chosen = equitable_coloring(edges, colors)
    for side in (0, 1):
        of_vertex: dict[int, list[int]] = {}
        for edge, color in zip(edges, chosen, strict=True):
            of_vertex.setdefault(edge[side], []).append(color)
        for row in of_vertex.values():
            for start in range(0, len(row), colors):
                part = row[start : start + colors]
                assert len(set(part)) == len(part)


@given(EDGES)
def test_as_many_colors_as_the_highest_degree_suffice(edges: list[tuple[int, int]]) -> None:
    degrees = Counter((side, edge[side]) for edge in edges for side in (0, 1))
    colors = max(degrees.values(), default=1)
    chosen = proper_coloring(edges, colors)
    seen = Counter(
        (side, edge[side], color)
        for edge, color in zip(edges, chosen, strict=True)
        for side in (0, 1)
    )
    assert max(seen.values(), default=1) == 1


@given(EDGES)
def test_halves_differ_by_one_at_most(edges: list[tuple[int, int]]) -> None:
    sides = halve([left for left, _ in edges], [right for _, right in edges])
    for end in (0, 1):
        balance: Counter[int] = Counter()
        for edge, side in zip(edges, sides, strict=True):
            balance[edge[end]] += 1 if side else -1
        assert all(abs(difference) <= 1 for difference in balance.values())


@pytest.mark.parametrize("colors", [3, 5, 7, 15, 16])
def test_large_multigraph_is_colored_evenly(colors: int) -> None:
    edges = [(i * 7 % 31, (i * i + i // 31) % 31) for i in range(5000)]
    times = Counter(
        (side, edge[side], color)
        for edge, color in zip(edges, equitable_coloring(edges, colors), strict=True)
        for side in (0, 1)
    )
    degree = Counter((side, edge[side]) for edge in edges for side in (0, 1))
    for (side, vertex, _), count in times.items():
        assert count <= -(-degree[side, vertex] // colors)


def test_one_pair_of_vertices_spreads_its_edges() -> None:
    assert sorted(equitable_coloring([(0, 0)] * 6, 3)) == [0, 0, 1, 1, 2, 2]


def test_same_edges_get_the_same_colors() -> None:
    edges = [(i % 5, i * 3 % 7) for i in range(100)]
    assert equitable_coloring(edges, 6) == equitable_coloring(list(edges), 6)


def test_nothing_to_color() -> None:
    assert equitable_coloring([], 5) == []


def test_too_few_colors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^right vertex 4 has 3 edges; 2 colours are too few$"):
        proper_coloring([(0, 4), (1, 4), (2, 4)], 2)


def test_no_colors_are_refused() -> None:
    with pytest.raises(ValueError, match="give at least one"):
        equitable_coloring([(0, 0)], 0)


def test_negative_vertices_are_refused() -> None:
    with pytest.raises(ValueError, match="number the vertices from 0"):
        equitable_coloring([(0, -1)], 2)
