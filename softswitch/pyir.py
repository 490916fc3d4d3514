"""A small tree of Python statements, with liveness analysis and rendering.

The code generator builds the packet functions as such trees. `prune` then drops assignments
nobody reads, tells which variables must come in from outside, and lets header extraction take
only what is needed later; `render` writes the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True)
class Assign:
    """`target = expr` without side effect: dropped where nobody reads the target."""

    target: str
    expr: str


@dataclass(slots=True)
class Effect:
    """A statement that must stay; `writes` lists the program's variables it sets."""

    text: str
    writes: tuple[str, ...] = ()


@dataclass(slots=True)
class Take:
    """Variables filled at once: `render` gets those of them that are read later.

    `reads` is source text that names the variables needed to do so.
    """

    writes: tuple[str, ...]
    render: Callable[[frozenset[str]], list[str]]
    reads: str = ""
    live: frozenset[str] = frozenset()


@dataclass(slots=True)
class Branch:
    """if / elif / else. Conditions have no side effects."""

    arms: list[tuple[str, Body]]
    otherwise: Body = field(default_factory=list)


@dataclass(slots=True)
class Leave:
    """To the end of the enclosing `Once`."""


@dataclass(slots=True)
class Once:
    """A block that `Leave` can leave."""

    body: Body


@dataclass(slots=True)
class Return:
    """return with a value."""

    expr: str


Node: TypeAlias = Assign | Effect | Take | Branch | Leave | Once | Return
Body: TypeAlias = list[Node]
Live: TypeAlias = frozenset[str]


class Variables:
    """The names liveness is about; all other identifiers are of no concern to it."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> str:
        """Make `name` a tracked variable."""
        self._names.add(name)
        return name

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def read_in(self, text: str) -> Live:
        """The tracked variables in a piece of source."""
        return frozenset(self._names.intersection(_IDENTIFIER.findall(text)))


def prune(
    body: Body, live: Live, variables: Variables, leave: Live = frozenset()
) -> tuple[Body, Live]:
    """`body` without dead assignments, and the variables it reads before it sets them.

    `live` is what is read after the body, `leave` what is read after the enclosing `Once`.
    """
    kept: Body = []
    for node in reversed(body):
        if isinstance(node, Assign):
            if node.target in variables:
                if node.target not in live:
                    continue
                live = live - {node.target}
            live = live | variables.read_in(node.expr)
            kept.append(node)
        elif isinstance(node, Effect):
            live = (live - set(node.writes)) | variables.read_in(node.text)
            kept.append(node)
        elif isinstance(node, Take):
            wanted = live & set(node.writes)
            live = live - wanted
            if wanted:
                live = live | variables.read_in(node.reads)
                kept.append(Take(node.writes, node.render, node.reads, frozenset(wanted)))
        elif isinstance(node, Leave):
            kept.clear()
            kept.append(node)
            live = leave
        elif isinstance(node, Return):
            kept.clear()
            kept.append(node)
            live = variables.read_in(node.expr)
        elif isinstance(node, Once):
            inner, live = prune(node.body, live, variables, live)
            if inner and not isinstance(inner[-1], Leave | Return):
                inner = [*inner, Leave()]
            kept.append(Once(inner))
        else:
            pruned, live = _prune_branch(node, live, variables, leave)
            if pruned is not None:
                kept.append(pruned)
    kept.reverse()
    return kept, live


def _prune_branch(
    node: Branch, live: Live, variables: Variables, leave: Live
) -> tuple[Branch | None, Live]:
    arms = [(text, *prune(body, live, variables, leave)) for text, body in node.arms]
    otherwise, before = prune(node.otherwise, live, variables, leave)
    if not otherwise:
        while arms and not arms[-1][1]:
            arms.pop()
    if not arms:
        return (None, live) if not otherwise else (Branch([("True", otherwise)]), before)
    for text, _, arm_live in arms:
        before = before | arm_live | variables.read_in(text)
    return Branch([(text, body) for text, body, _ in arms], otherwise), before


def written(body: Iterable[Node]) -> set[str]:
    """All targets assigned anywhere in `body`."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, Assign):
            names.add(node.target)
        elif isinstance(node, Effect | Take):
            names.update(node.writes)
        elif isinstance(node, Branch):
            for _, arm in node.arms:
                names |= written(arm)
            names |= written(node.otherwise)
        elif isinstance(node, Once):
            names |= written(node.body)
    return names


def render(body: Body, depth: int) -> list[str]:
    """Source lines of `body`, indented by `depth` levels."""
    pad = "    " * depth
    lines: list[str] = []
    for node in body:
        if isinstance(node, Assign):
            lines.append(f"{pad}{node.target} = {node.expr}")
        elif isinstance(node, Effect):
            lines.append(pad + node.text)
        elif isinstance(node, Take):
            lines.extend(pad + line for line in node.render(node.live))
        elif isinstance(node, Leave):
            lines.append(pad + "break")
        elif isinstance(node, Return):
            lines.append(f"{pad}return {node.expr}")
        elif isinstance(node, Once):
            lines.append(pad + "while True:")
            lines.extend(render(node.body, depth + 1) or [pad + "    break"])
        else:
            lines.extend(_render_branch(node, depth))
    return lines


def _render_branch(node: Branch, depth: int) -> list[str]:
    pad = "    " * depth
    if len(node.arms) == 1 and node.arms[0][0] == "True":
        return render(node.arms[0][1], depth)
    if len(node.arms) == 1 and not node.arms[0][1]:
        return [f"{pad}if not ({node.arms[0][0]}):", *render(node.otherwise, depth + 1)]
    arms, otherwise = list(node.arms), node.otherwise
    # An if alone in an else is an elif: Python nests no deeper than 100 levels.
    while len(otherwise) == 1 and isinstance(inner := otherwise[0], Branch):
        arms.extend(inner.arms)
        otherwise = inner.otherwise
    lines: list[str] = []
    for index, (text, arm) in enumerate(arms):
        lines.append(f"{pad}{'elif' if index else 'if'} {text}:")
        lines.extend(render(arm, depth + 1) or [pad + "    pass"])
    if otherwise:
        lines.append(pad + "else:")
        lines.extend(render(otherwise, depth + 1))
    return lines
