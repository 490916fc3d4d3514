"""Edge colouring of bipartite multigraphs by Euler splitting.

An edge is a pair (left vertex, right vertex); edges may be repeated. Colours stand for parallel
planes of a fabric, vertices for what hangs off its planes. All functions are deterministic.

Sources: halving by Euler tours, Gabow 1976 and Cole, Ost, Schirra 2001; the perfect matching of a
regular bipartite graph by random walks in O(n log n), Goel, Kapralov, Khanna, "Perfect matchings
in O(n log n) time in regular bipartite graphs" (STOC 2010), with a fixed seed; equitable colouring
by splitting vertices, de Werra 1971.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_SEED = 0x52494E47


def equitable_coloring(edges: Sequence[tuple[int, int]], colors: int) -> list[int]:
    """Return a colour 0..colors-1 per edge, spread as evenly as can be at every vertex at once.

    A vertex of degree d has every colour floor(d / colors) or ceil(d / colors) times, on both
    sides. The order of the edges matters for more: of every vertex, the first ``colors`` edges
    all differ in colour, so do the next, and so on; and vertices with neighbouring numbers share
    out their remainders evenly too. Time O(E log colors), plus a matching per odd level.

    Raises:
        ValueError: ``colors`` is not positive, or a vertex number is negative.
    """
    if colors < 1:
        raise ValueError(f"{colors} colours cannot colour anything; give at least one")
    if any(left < 0 or right < 0 for left, right in edges):
        raise ValueError("a vertex number is negative; number the vertices from 0")
    lefts = _split_vertices([left for left, _ in edges], colors)
    rights = _split_vertices([right for _, right in edges], colors)
    return _color_split_graph(lefts, rights, colors)


def proper_coloring(edges: Sequence[tuple[int, int]], colors: int) -> list[int]:
    """Return a colour 0..colors-1 per edge such that edges at one vertex all differ in colour.

    Raises:
        ValueError: a vertex has more edges than there are colours.
    """
    for side, name in ((0, "left"), (1, "right")):
        degree: dict[int, int] = {}
        for edge in edges:
            degree[edge[side]] = degree.get(edge[side], 0) + 1
        for vertex, count in degree.items():
            if count > colors:
                raise ValueError(
                    f"{name} vertex {vertex} has {count} edges; {colors} colours are too few"
                )
    return equitable_coloring(edges, colors)


def halve(lefts: Sequence[int], rights: Sequence[int]) -> list[bool]:
    """Return which half each edge goes to; at every vertex the halves differ by at most one.

    Edges are paired at their left and at their right vertex; a walk from mate to mate alternates
    between the halves. It closes only after an even number of edges, so the halves never clash:
    these walks are the pieces of an Euler tour.
    """
    count = len(lefts)
    left_mate = _pair(lefts)
    right_mate = _pair(rights)
    half: list[bool | None] = [None] * count
    toggle = False
    # Open walks first: they must be entered at an end, or their two arms could clash.
    for start in range(count):
        if half[start] is not None:
            continue
        if left_mate[start] < 0:
            _alternate(start, toggle, right_mate, left_mate, half)
            toggle = not toggle
        elif right_mate[start] < 0:
            _alternate(start, toggle, left_mate, right_mate, half)
            toggle = not toggle
    for start in range(count):
        if half[start] is None:
            _alternate(start, False, right_mate, left_mate, half)
    return [bool(side) for side in half]


def _pair(vertices: Sequence[int]) -> list[int]:
    """Mate of each edge among the edges of its vertex, -1 for the odd one out."""
    mate = [-1] * len(vertices)
    waiting = [-1] * (max(vertices, default=-1) + 1)
    for edge, vertex in enumerate(vertices):
        other = waiting[vertex]
        if other < 0:
            waiting[vertex] = edge
        else:
            mate[edge] = other
            mate[other] = edge
            waiting[vertex] = -1
    return mate


def _alternate(
    edge: int,
    side: bool,
    first_mate: list[int],
    second_mate: list[int],
    half: list[bool | None],
) -> None:
    while edge >= 0 and half[edge] is None:
        half[edge] = side
        side = not side
        edge = first_mate[edge]
        first_mate, second_mate = second_mate, first_mate


def _split_vertices(vertices: Sequence[int], size: int) -> list[int]:
    """Split vertices into bins of at most ``size`` edges and return the bin of each edge.

    A vertex's edges fill whole bins in the order given; its remainder, never cut in two, shares
    a bin with the remainders of the vertices numbered next to it.
    """
    degree: dict[int, int] = {}
    for vertex in vertices:
        degree[vertex] = degree.get(vertex, 0) + 1
    first_bin: dict[int, int] = {}
    last_bin: dict[int, int] = {}
    next_bin = 0
    for vertex in sorted(degree):
        first_bin[vertex] = next_bin
        next_bin += degree[vertex] // size
    room = 0
    for vertex in sorted(degree):
        rest = degree[vertex] % size
        if rest == 0:
            continue
        if rest > room:
            next_bin += 1
            room = size
        room -= rest
        last_bin[vertex] = next_bin - 1
    seen = dict.fromkeys(degree, 0)
    bins = []
    for vertex in vertices:
        position = seen[vertex]
        seen[vertex] = position + 1
        whole = degree[vertex] // size
        inside = position // size
        bins.append(first_bin[vertex] + inside if inside < whole else last_bin[vertex])
    return bins


def _color_split_graph(lefts: list[int], rights: list[int], colors: int) -> list[int]:
    """Colour a graph whose vertices have at most ``colors`` edges each."""
    count = len(lefts)
    if colors & (colors - 1):
        lefts, rights = _make_regular(lefts, rights, colors)
    result = [0] * len(lefts)
    rng = random.Random(_SEED)
    pending = [(list(range(len(lefts))), colors, 0)]
    while pending:
        edges, number, base = pending.pop()
        if not edges:
            continue
        if number == 1:
            for edge in edges:
                result[edge] = base
            continue
        if number & 1:
            matching = _perfect_matching(
                [lefts[edge] for edge in edges], [rights[edge] for edge in edges], number, rng
            )
            rest = []
            for edge, chosen in zip(edges, matching, strict=True):
                if chosen:
                    result[edge] = base + number - 1
                else:
                    rest.append(edge)
            edges, number = rest, number - 1
        halves = halve([lefts[edge] for edge in edges], [rights[edge] for edge in edges])
        half = number // 2
        no = [edge for edge, side in zip(edges, halves, strict=True) if not side]
        yes = [edge for edge, side in zip(edges, halves, strict=True) if side]
        pending += [(no, half, base), (yes, half, base + half)]
    return result[:count]


def _make_regular(lefts: list[int], rights: list[int], degree: int) -> tuple[list[int], list[int]]:
    """Append edges until every vertex has exactly ``degree``."""
    size = max(max(lefts, default=-1), max(rights, default=-1)) + 1
    missing_left = [degree] * size
    missing_right = [degree] * size
    for vertex in lefts:
        missing_left[vertex] -= 1
    for vertex in rights:
        missing_right[vertex] -= 1
    extra_left = [vertex for vertex, count in enumerate(missing_left) for _ in range(count)]
    extra_right = [vertex for vertex, count in enumerate(missing_right) for _ in range(count)]
    return lefts + extra_left, rights + extra_right


def _perfect_matching(
    lefts: list[int], rights: list[int], degree: int, rng: random.Random
) -> list[bool]:
    """Return which edges form a perfect matching of a regular bipartite multigraph.

    Every free left vertex walks at random along edges to a right vertex and back along that
    vertex's matched edge until it meets a free right vertex; in a regular graph that is near.
    The result is always a perfect matching; only the number of steps depends on the numbers drawn.
    """
    size = max(lefts) + 1
    incident: list[list[int]] = [[] for _ in range(size)]
    for edge, vertex in enumerate(lefts):
        incident[vertex].append(edge)
    matched_left = [-1] * size
    matched_right = [-1] * size
    draw = rng.random
    via = [-1] * size
    for start in range(size):
        here = start
        while True:
            edge = incident[here][int(draw() * degree)]
            if edge == matched_left[here]:
                continue
            via[here] = edge
            back = matched_right[rights[edge]]
            if back < 0:
                break
            here = lefts[back]
        # The last way out of each vertex leads from the start to the end without loops.
        here = start
        while True:
            edge = via[here]
            back = matched_right[rights[edge]]
            matched_left[here] = edge
            matched_right[rights[edge]] = edge
            if back < 0:
                break
            here = lefts[back]
    chosen = [False] * len(lefts)
    for edge in matched_left:
        chosen[edge] = True
    return chosen
