"""finsy, an independent client, drives the server: the entities program and Ringstep's own."""

from __future__ import annotations

import asyncio
import ipaddress
from importlib.resources import files
from pathlib import Path

import finsy as fy
import pytest
from finsy.grpcutil import GRPCStatusCode
from finsy.p4client import P4ClientError
from p4rt_rig import DATA, TIMEOUT_S, Rig, ethernet

from ringstep.protocol.inband import OP_READ_STATE, ReadRequest, StateReply

BUILD = Path(str(files("ringstep"))) / "p4build"
ENTITIES = fy.SwitchOptions(p4info=DATA / "entities.p4info.txtpb", p4blob=DATA / "entities.json")
RINGSTEP = fy.SwitchOptions(
    p4info=BUILD / "ringstep_v1model.p4info.txtpb", p4blob=BUILD / "ringstep_v1model.json"
)


def connect(rig: Rig, options: fy.SwitchOptions, **changed: object) -> fy.Switch:
    return fy.Switch("sw", rig.server.address, options(**changed))


async def everything(switch: fy.Switch, *queries: fy.P4Entity) -> list[fy.P4Entity]:
    return [one async for one in switch.read(queries)]


async def test_pipeline_is_pushed_once(rig: Rig) -> None:
    async with connect(rig, ENTITIES) as switch:
        assert switch.is_primary
        pushed = rig.switch.pipeline
        assert pushed is not None
    async with connect(rig, ENTITIES) as switch:
        assert switch.is_primary
        assert rig.switch.pipeline is pushed, "the cookie should have told finsy not to push again"


ENTRIES = [
    fy.P4TableEntry(
        "l2", match=fy.P4TableMatch(dst_addr=2), action=fy.P4TableAction("send_to_cpu")
    ),
    fy.P4TableEntry(
        "route",
        match=fy.P4TableMatch(dst_addr="10.0.0.0/8"),
        action=fy.P4TableAction("set_nexthop", nexthop_id=7),
    ),
    fy.P4TableEntry(
        "acl",
        match=fy.P4TableMatch(src_addr="0x10/&0xF0", total_len="1...9", ether_type=0x800),
        action=fy.P4TableAction("set_class", traffic_class=3),
        priority=4,
        metadata=b"note",
    ),
]


async def test_entries_read_back_equal(rig: Rig) -> None:
    async with connect(rig, ENTITIES) as switch:
        await switch.insert(ENTRIES)
        for one in ENTRIES:
            found = await everything(switch, fy.P4TableEntry(one.table_id))
            assert [str(e.encode(switch.p4info)) for e in found] == [str(one.encode(switch.p4info))]


async def test_members_groups_and_one_shots(rig: Rig) -> None:
    def rewrite(port: int) -> fy.P4TableAction:
        return fy.P4TableAction("rewrite", port=port, src_mac=1, dst_mac=2)

    async with connect(rig, ENTITIES) as switch:
        members = [fy.P4ActionProfileMember("ecmp", member_id=n, action=rewrite(n)) for n in (1, 2)]
        group = fy.P4ActionProfileGroup(
            "ecmp", group_id=1, members=[fy.P4Member(1, weight=1), fy.P4Member(2, weight=2)]
        )
        hop = fy.P4TableEntry(
            "nexthop",
            match=fy.P4TableMatch(nexthop_id=7),
            action=fy.P4IndirectAction(group_id=1),
        )
        await switch.insert(members)
        await switch.insert([group])
        await switch.insert([hop])
        found = await everything(switch, fy.P4ActionProfileMember(), fy.P4ActionProfileGroup())
        assert [str(e) for e in found] == [str(e) for e in [*members, group]]
        await switch.delete([hop])
        await switch.delete([group])
        await switch.delete(members)
        one_shot = fy.P4TableEntry(
            "nexthop",
            match=fy.P4TableMatch(nexthop_id=7),
            action=fy.P4IndirectAction([(1, rewrite(1)), (2, rewrite(2))]),
        )
        await switch.insert([one_shot])
        [back] = await everything(switch, fy.P4TableEntry("nexthop"))
        assert back.encode(switch.p4info) == one_shot.encode(switch.p4info)


async def test_delete_all_leaves_a_switch_as_loaded(rig: Rig) -> None:
    async with connect(rig, ENTITIES) as switch:
        settings = fy.P4TableEntry(
            "settings", is_default_action=True, action=fy.P4TableAction("set_seed", seed=1)
        )
        await switch.insert(ENTRIES)
        await switch.modify([settings])
        await switch.delete_all()
        left = await everything(switch, fy.P4TableEntry())
        assert {one.table_id for one in left if isinstance(one, fy.P4TableEntry)} == {"fixed"}
        [default] = await everything(switch, fy.P4TableEntry("settings", is_default_action=True))
        assert isinstance(default, fy.P4TableEntry)
        assert isinstance(default.action, fy.P4TableAction)
        assert default.action.args["seed"] == 7


async def test_failed_update_is_named(rig: Rig) -> None:
    async with connect(rig, ENTITIES) as switch:
        await switch.insert(ENTRIES)
        with pytest.raises(P4ClientError) as caught:
            await switch.write([-ENTRIES[0], +ENTRIES[1]])
        assert caught.value.code == GRPCStatusCode.UNKNOWN
        assert list(caught.value.details) == [1]
        assert caught.value.details[1].canonical_code == GRPCStatusCode.ALREADY_EXISTS
        await switch.delete([ENTRIES[0]], strict=False)


async def test_packets_both_ways(rig: Rig) -> None:
    async with connect(rig, ENTITIES) as switch:
        await switch.insert(ENTRIES[:1])
        packets = switch.read_packets()
        first = asyncio.ensure_future(anext(packets))
        await asyncio.sleep(0)
        rig.receive(9, ethernet(2, b"in"))
        packet = await asyncio.wait_for(first, TIMEOUT_S)
        assert packet.payload == ethernet(2, b"in")
        assert (packet["ingress_port"], packet["op"]) == (9, 3)
        await switch.write([fy.P4PacketOut(ethernet(5, b"out"), egress_port=4, op=0)])
        sent = await asyncio.to_thread(rig.sent.get, timeout=TIMEOUT_S)
        assert sent == (4, ethernet(5, b"out"))


async def test_second_controller_with_the_same_id_bids_lower_and_takes_over(rig: Rig) -> None:
    second = connect(rig, ENTITIES)
    became = asyncio.Event()
    second.ee.add_listener(fy.SwitchEvent.BECOME_PRIMARY, lambda *_: became.set())
    async with connect(rig, ENTITIES) as first:
        await second.__aenter__()
        assert (first.is_primary, second.is_primary) == (True, False)
        assert second.election_id < first.election_id
    await asyncio.wait_for(became.wait(), TIMEOUT_S)
    assert second.is_primary
    await second.insert(ENTRIES)
    await second.__aexit__(None, None, None)


async def test_controller_without_a_program_learns_it_from_the_switch(rig: Rig) -> None:
    async with connect(rig, ENTITIES), fy.Switch("reader", rig.server.address) as reader:
        assert not reader.is_primary
        assert {table.alias for table in reader.p4info.tables} >= {"l2", "route", "acl"}


# ------------------------------------------------------------------------------ Ringstep's program


async def test_ringstep_program_is_programmed_and_read(rig: Rig) -> None:
    forward = fy.P4TableAction("forward", port=2, src_mac=1, dst_mac=2)
    entries = [
        fy.P4TableEntry(
            "route_v4",
            match=fy.P4TableMatch(dst_addr="10.0.0.0/24"),
            action=fy.P4TableAction("set_nexthop", nexthop_id=1),
        ),
        fy.P4TableEntry(
            "route_v6",
            match=fy.P4TableMatch(dst_addr="2001:db8::/32"),
            action=fy.P4TableAction("set_nexthop", nexthop_id=1),
        ),
        fy.P4TableEntry(
            "job_by_dst_qp",
            match=fy.P4TableMatch(dst_addr=int(ipaddress.IPv6Address("::ffff:10.0.0.1")), dst_qp=3),
            action=fy.P4TableAction("set_job", job=5, path_id=0),
        ),
        fy.P4TableEntry(
            "job_by_tag",
            match=fy.P4TableMatch(sport="0xC000/&0xC000"),
            action=fy.P4TableAction("set_job", job=6, path_id=0),
            priority=1,
        ),
        fy.P4TableEntry(
            "block_map",
            match=fy.P4TableMatch(job=5, egress_port=2),
            action=fy.P4TableAction("set_block", block=77),
        ),
        fy.P4TableEntry(
            "red",
            match=fy.P4TableMatch(egress_port=2),
            action=fy.P4TableAction("set_red", q_min=5, q_max=50, p_max=6554, gap=20),
        ),
        fy.P4TableEntry(
            "nexthop",
            match=fy.P4TableMatch(nexthop_id=1),
            action=fy.P4IndirectAction(group_id=1),
        ),
    ]
    async with connect(rig, RINGSTEP) as switch:
        await switch.insert([fy.P4ActionProfileMember("ecmp", member_id=1, action=forward)])
        await switch.insert(
            [fy.P4ActionProfileGroup("ecmp", group_id=1, members=[fy.P4Member(1, weight=1)])]
        )
        await switch.insert(entries)
        seed = fy.P4TableEntry(
            "switch_config",
            is_default_action=True,
            action=fy.P4TableAction("set_switch", ecmp_seed=0xDEADBEEF),
        )
        await switch.modify([seed])
        for one in entries:
            [found] = await everything(switch, fy.P4TableEntry(one.table_id))
            assert found.encode(switch.p4info) == one.encode(switch.p4info)
        [default] = await everything(
            switch, fy.P4TableEntry("switch_config", is_default_action=True)
        )
        assert default.encode(switch.p4info) == seed.encode(switch.p4info)
        [cell] = await everything(switch, fy.P4CounterEntry("job_data", index=5))
        assert isinstance(cell, fy.P4CounterEntry)
        assert cell.packet_count == 0
        whole = await everything(switch, fy.P4CounterEntry("job_data"))
        assert len(whole) == 16384


async def test_ringstep_state_is_read_in_band(rig: Rig) -> None:
    async with connect(rig, RINGSTEP) as switch:
        packets = switch.read_packets()
        first = asyncio.ensure_future(anext(packets))
        await asyncio.sleep(0)
        request = ReadRequest(request_id=0xABCD, job=5, block=77)
        await switch.write([fy.P4PacketOut(request.encode(), egress_port=0, op=OP_READ_STATE)])
        packet = await asyncio.wait_for(first, TIMEOUT_S)
        assert packet["op"] == OP_READ_STATE
        reply = StateReply.decode(packet.payload)
        assert (reply.request_id, reply.job, reply.block) == (0xABCD, 5, 77)
