"""The ECMP hash of the Tofino 2 program: the model against the source, run packet by packet."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv6Address

import pytest
from sample_frames import frame
from t2na_program import Bench

from ringstep.fabric.ecmp import FlowKey, ecmp_hash, t2na_hash
from ringstep.protocol.rocev2 import build

UPLINKS = (11, 12, 13)
SEEDS = (0, 1, 0xDEADBEEF, 0xFFFFFFFF)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.nexthop(100, *UPLINKS)
    bench.route("0.0.0.0/0", 100)
    bench.route("::/0", 100)
    return bench


def handed_to_the_selector(bench: Bench) -> int:
    return int(bench.pipe.things["Ingress"]["meta"]["ecmp_choice"])


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("seed", SEEDS)
def test_model_gives_what_the_program_hands_to_its_selector(
    bench: Bench, seed: int, v6: bool
) -> None:
    bench.table("switch_config").set_default("set_switch", ecmp_seed=seed)
    draw = random.Random(seed)
    differs = 0
    for _ in range(200):
        if v6:
            src, dst = (IPv6Address(draw.getrandbits(128)) for _ in "sd")
        else:
            src, dst = (IPv4Address(draw.getrandbits(32)) for _ in "sd")
        sport = draw.getrandbits(16)
        sent = bench.send(build(frame(v6=v6, src_ip=src, dst_ip=dst, sport=sport)))
        assert sent is not None
        flow = FlowKey(src, dst, sport, 4791)
        assert handed_to_the_selector(bench) == t2na_hash(seed, flow)
        # The interpreter's selector, a stand-in: member = hash mod group size.
        assert sent[0] == UPLINKS[t2na_hash(seed, flow) % len(UPLINKS)]
        differs += t2na_hash(seed, flow) != ecmp_hash(seed, flow)
    assert differs > 190


@pytest.mark.parametrize("protocol", [6, 17, 58])
def test_ports_of_other_protocols_and_of_fragments_are_not_in_the_hash(
    bench: Bench, protocol: int
) -> None:
    bench.table("switch_config").set_default("set_switch", ecmp_seed=9)
    src, dst = IPv4Address("10.0.1.1"), IPv4Address("10.0.2.3")
    data = bytearray(build(frame(src_ip=src, dst_ip=dst, sport=0xC123)))
    data[23] = protocol
    # More fragments follow; the sum is put right.
    data[20] |= 0x20
    data[24:26] = b"\0\0"
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(14, 34, 2))
    data[24:26] = (~(total % 0xFFFF) & 0xFFFF).to_bytes(2, "big")
    assert bench.send(bytes(data)) is not None
    assert handed_to_the_selector(bench) == t2na_hash(9, FlowKey(src, dst, 0, 0, protocol))
