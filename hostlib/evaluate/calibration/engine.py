"""Calls of the engine on this machine's namespaces, for demonstrations and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringstep.hostlib.evaluate.amounts import parse_bytes
from ringstep.hostlib.evaluate.calibration.clean import Series
from ringstep.hostlib.evaluate.calibration.live import observe
from ringstep.hostlib.evaluate.calibration.sources import SourceError
from ringstep.hostlib.evaluate.engine.cluster import EngineError
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.nethosts import NetHostsError, missing
from ringstep.hostlib.shm_layout import Collective

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def on_engine(
    collectives: Sequence[str],
    sizes: Sequence[str],
    nodes: int,
    rate_bps: float,
    calls: int,
    progress: Callable[[str, int, int], None],
) -> tuple[Series, ...]:
    """Run each collective at each size, and return the calls.

    Args:
        collectives: names.
        sizes: such as ``1M``.
        nodes: hosts, one rank each.
        rate_bps: of their links.
        calls: of each.
        progress: called with what runs, calls done and to do.

    Raises:
        SourceError: no such collective or size, or no namespaces can be made here.
    """
    if (why := missing()) is not None:
        raise SourceError(f"--engine: {why}")
    if unknown := [name for name in collectives if name not in COLLECTIVES]:
        raise SourceError(f"--collective {unknown[0]}: {', '.join(COLLECTIVES)}")
    try:
        todo = [(name, parse_bytes(size)) for name in collectives for size in sizes]
    except ValueError as error:
        raise SourceError(f"--bytes {error}") from None
    found = []
    for i, (name, n_bytes) in enumerate(todo):

        def step(done: int, i: int = i, name: str = name, n_bytes: int = n_bytes) -> None:
            progress(f"{name} of {n_bytes} bytes", i * calls + done, len(todo) * calls)

        try:
            with EngineEnvironment(Collective[name.upper()], n_bytes, nodes, rate_bps) as env:
                found.append(observe(env, calls, i, step))
        except (BuildError, EngineError, NetHostsError, ValueError) as error:
            raise SourceError(f"--engine: {error}") from None
    return tuple(found)
