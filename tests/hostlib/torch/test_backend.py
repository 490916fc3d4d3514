"""Backend "ringstep" of torch.distributed: what it does, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.mark.parametrize("size", [1, 3])
def test_every_collective_gives_what_it_has_to(world: Any, size: int) -> None:
    world.start("collectives", size)
    world.finish()


@pytest.mark.slow
def test_functional_collectives_run_on_it(world: Any) -> None:
    world.start("functional", 2)
    world.finish()


def test_coalesced_collectives_run_as_a_group(world: Any) -> None:
    world.start("coalesced", 2)
    assert world.finish() == [[4, 2, 2]] * 2


def test_what_it_does_not_do_is_said_with_what_it_does(world: Any) -> None:
    world.start("refused", 2)
    for found in world.finish():
        for operation in ("reduce", "send"):
            assert f"backend ringstep has no {operation}" in found[operation]
            assert (
                "all_reduce, all_gather, reduce_scatter, broadcast and barrier" in found[operation]
            )
        assert "has no alltoall" in found["all_to_all"]
        assert "torch.int16 cannot be reduced" in found["type"]
        assert "BAND is not among SUM, PRODUCT, MAX, MIN, AVG" in found["op"]
        assert "takes dense tensors on the CPU" in found["device"]
        assert "must have 2 times as many" in found["sizes"]
        assert "torch_backend.Options" in found["options"]
        assert found["after"].startswith("ValueError")  # torch's own word for no group


def test_sub_groups_work_side_by_side(world: Any) -> None:
    world.start("groups", 3)
    assert world.finish() == [[3, 1, 0], [3, 1, 3], [3, 2, 3]]


def test_a_wait_may_give_up_and_the_collective_goes_on(world: Any) -> None:
    world.start("waits", 2)
    waited, _ = world.finish()
    assert waited.startswith("DistBackendError")
    assert "not done within 0.02 s" in waited


def test_abort_ends_it_for_all_ranks(world: Any) -> None:
    world.start("aborted", 2)
    found = world.finish()
    assert all(text.startswith("DistBackendError") for text in found), found


def test_a_rank_that_never_comes_is_named_by_the_timeout(world: Any) -> None:
    world.start("no_peer", 2)
    waiting, _ = world.finish()
    assert waiting.startswith("DistBackendError"), waiting


def test_rank_0_that_never_comes_is_an_error_too(world: Any) -> None:
    world.start("no_root", 2)
    _, waiting = world.finish()
    assert waiting.startswith("DistBackendError"), waiting


def test_a_forked_child_leaves_the_group_alone(world: Any) -> None:
    world.start("forked", 2)
    for status, total, told in world.finish():
        assert (status, total) == (0, 2.0)
        assert "the process group was shut down" in told


def test_settings_are_checked(world: Any, tmp_path: Path) -> None:
    world.start("collectives", 1, env={"RINGSTEP_ENGINE_MAX_CHANNELS": "9"})
    (found,) = world.outcomes()
    assert found["error"] == "ValueError"
    assert "RINGSTEP_ENGINE_MAX_CHANNELS=9: 1 to 8" in found["message"]
