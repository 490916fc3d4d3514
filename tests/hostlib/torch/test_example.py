"""The training example: the same losses on every backend, and its command line.

Its ranks are forked from a process that has loaded PyTorch, and told of each other as torchrun
tells them; tests/cli/test_run_training.py has torchrun start them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

Make = Callable[[], Any]


def run(world: Any, *words: str, ranks: int = 1) -> list[dict[str, Any]]:
    """Return status, stdout and stderr of every rank; a single one is not started as torchrun does.

    The words are the example's.
    """
    master = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{**master, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(ranks)]
    world.start("example", ranks, env_of=places if ranks > 1 else (), words=words)
    found: list[dict[str, Any]] = world.finish()
    return found


def trained(world: Any, backend: str, *words: str) -> dict[str, Any]:
    small = ("--width", "32", "--layers", "1", "--length", "8", "--steps", "20", "--json")
    first, second = run(world, "--backend", backend, *small, *words, ranks=2)
    assert (first["status"], second["status"]) == (0, 0), first["err"] + second["err"]
    assert second["out"] == ""
    lines = first["out"].splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["10/20", "20/20"]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@pytest.mark.slow
def test_losses_are_the_same_on_gloo_and_on_the_engine(
    another_world: Make, engine_built: Path
) -> None:
    gloo = trained(another_world(), "gloo")
    engine = trained(another_world(), "ringstep", "--fence-every", "5")
    assert gloo["last_loss"] < 0.9 * gloo["first_loss"]
    assert engine["last_loss"] == pytest.approx(gloo["last_loss"], rel=1e-3)
    assert engine["collectives"] == gloo["collectives"] > 0
    assert engine["cct_p50_ms"] > 0


def test_it_says_how_it_is_started(world: Any) -> None:
    (done,) = run(world)
    assert done["status"] == 2
    assert "torchrun --nproc-per-node 2" in done["err"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--width", "30"), "--width 30: a multiple of 4"),
        (("--steps", "0"), "a whole number above 0"),
    ],
)
def test_bad_options_are_refused(world: Any, arguments: tuple[str, ...], text: str) -> None:
    (done,) = run(world, *arguments)
    assert done["status"] == 2
    assert text in done["err"]
