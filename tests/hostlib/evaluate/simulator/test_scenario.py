from __future__ import annotations

import tomllib
from collections import Counter

import pytest

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate.simulator import scenario
from ringstep.hostlib.evaluate.simulator.scenario import BURST, CALLS, Case, Rivals
from ringstep.hostlib.evaluate.sources import SweepOptions
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load

KIB, MIB = 1 << 10, 1 << 20


def asked(
    n_bytes: int = 4 * MIB, nodes: int = 8, collective: Collective = Collective.ALL_REDUCE
) -> SweepOptions:
    return SweepOptions(collective, n_bytes, nodes, 1, 100e9, (CLEAN,), 4, 0, 8, 1)


def ring(channels: int, proto: Proto = Proto.SIMPLE, chunk: int = 0) -> Config:
    return Config(Algo.RING, proto, channels, 0, chunk)


def tree(channels: int, proto: Proto = Proto.SIMPLE) -> Config:
    return Config(Algo.TREE, proto, channels)


def test_channels_are_queue_pairs_that_last() -> None:
    job = scenario.call(asked(), ring(6), Rivals.FABRIC)
    assert (job["channels"], job["sender"], job["port"]) == (6, "persistent", "sticky")
    assert job["iterations"] == CALLS
    assert (job["algorithm"], job["collective"], job["size"]) == ("ring", "all_reduce", 4 * MIB)


def test_a_tree_is_a_double_binary_tree() -> None:
    assert scenario.call(asked(), tree(2), Rivals.FABRIC)["algorithm"] == "double_binary_tree"


@pytest.mark.parametrize("config", [ring(2, Proto.LL), tree(3, Proto.LL)], ids=str)
def test_ll_sends_every_byte_twice_and_answers_sooner(config: Config) -> None:
    simple = Config(config.algo, Proto.SIMPLE, config.n_channels)
    fast, plain = (scenario.call(asked(), c, Rivals.FABRIC) for c in (config, simple))
    assert fast["size"] == 2 * plain["size"]
    assert (fast["endpoint_delay"], plain["endpoint_delay"]) == ("5us", "14us")


@pytest.mark.parametrize(
    ("config", "n_bytes", "count"),
    [
        (ring(1), 4 * MIB, 2),  # a step of 512 KiB in two slices
        (ring(8), 4 * MIB, 2),
        (ring(1), 32 * MIB, 4),  # a step of 4 MiB in slices of 1 MiB
        (ring(8), 1 * MIB, 1),  # a step of 16 KiB
        (ring(1, chunk=128 * KIB), 4 * MIB, 4),
        (ring(1, Proto.LL), 4 * MIB, 16),  # slots of 32 KiB
        (ring(8, Proto.LL), 4 * MIB, 2),
        (ring(1, Proto.LL), 1 << 30, 256),  # no more than the simulator takes
        (tree(1), 64 * MIB, 64),  # 8 chunks per level and more: 512 KiB
        (tree(1), 4 * MIB, 16),  # 128 KiB
        (tree(8), 4 * MIB, 4),  # 64 KiB
        (tree(8), 512 * KIB, 1),
        (tree(2, Proto.LL), 4 * MIB, 32),
    ],
    ids=str,
)
def test_messages_are_cut_as_nccl_cuts_them(config: Config, n_bytes: int, count: int) -> None:
    assert scenario.pieces(asked(n_bytes), config) == count


def test_a_broadcast_is_a_chain_of_slots() -> None:
    job = scenario.call(asked(4 * MIB, 4, Collective.BROADCAST), ring(2), Rivals.FABRIC)
    assert (job["collective"], job["chunks"]) == ("broadcast", 4)
    assert "messages_per_step" not in job


@pytest.mark.parametrize("rivals", Rivals)
@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_every_link_has_as_many_rivals_each_way(rivals: Rivals, nodes: int) -> None:
    jobs = list(scenario.rival_jobs(asked(nodes=nodes), Load(0.8, 5), rivals, 10**6))
    ends = [job["hosts"] for job in jobs]
    assert all(src != dst for src, dst in ends)
    assert set(Counter(src for src, _ in ends).values()) == {5}
    assert set(Counter(dst for _, dst in ends).values()) == {5}


@pytest.mark.parametrize("level", [0.3, 0.9])
def test_rivals_want_their_level_of_the_link(level: float) -> None:
    jobs = list(scenario.rival_jobs(asked(), Load(level), Rivals.FABRIC, 10**7))
    assert len(jobs) == 8 * scenario.FLOWS
    message, time = jobs[0]["op"]
    period = int(time["time"].removesuffix("ns"))
    assert time["after"] == []  # beside the message, not after it
    assert message["size"] == BURST
    assert scenario.FLOWS * BURST * 8 / (period * 1e-9) == pytest.approx(level * 100e9, rel=1e-4)
    assert jobs[0]["iterations"] * period > 10**7  # until the end of the run


def test_rivals_have_hosts_of_their_own_in_the_fabric_and_share_nics_otherwise() -> None:
    for rivals, shared in ((Rivals.FABRIC, False), (Rivals.HOST, True)):
        nodes = set(scenario.call(asked(), ring(1), rivals)["hosts"])
        theirs = {h for j in scenario.rival_jobs(asked(), Load(0.5), rivals, 1) for h in j["hosts"]}
        assert (len(nodes), len(theirs)) == (8, 8)
        assert (nodes == theirs) is shared
        assert nodes.isdisjoint(theirs) is not shared
        fabric = scenario.base(asked(), rivals)["fabric"]
        assert fabric["leaves"] * fabric["hosts_per_leaf"] == len(nodes | theirs)


def test_a_clean_network_has_no_rivals_and_no_end() -> None:
    point = scenario.point(asked(), Case(ring(2), CLEAN), Rivals.FABRIC, 10**6)
    assert len(point["job"]) == 1
    assert "until" not in point


def test_names_follow_from_the_content_alone() -> None:
    case = Case(ring(2), Load(0.5))
    names = {
        scenario.point(options, case, rivals, until)["name"]
        for options in (asked(), asked(nodes=4))
        for rivals in Rivals
        for until in (10**6, 2 * 10**6)
    }
    assert len(names) == 8
    again = scenario.point(asked(), case, Rivals.HOST, 10**6)["name"]
    assert again in names
    assert again.startswith("ring-simple-2-")


def test_files_are_toml() -> None:
    point = scenario.point(asked(), Case(tree(3), Load(0.5)), Rivals.FABRIC, 10**6)
    tables = {**scenario.base(asked(), Rivals.FABRIC), **point}
    assert tomllib.loads(scenario.document(tables)) == tables
