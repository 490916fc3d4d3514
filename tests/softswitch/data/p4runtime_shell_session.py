"""A session of p4runtime-shell against a server that runs nothing yet: ADDRESS P4INFO JSON.

Runs in p4runtime-shell's own environment (it pins a protobuf that finsy cannot use). Prints one
line per check; the test compares them.
"""

import sys

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

address, p4info, device_config = sys.argv[1:]
sh.setup(
    device_id=1,
    grpc_addr=address,
    election_id=(0, 1),
    config=sh.FwdPipeConfig(p4info, device_config),
)


def report(name, value):
    print(f"RESULT {name}: {value}")


entry = sh.TableEntry("l2")(action="forward")
entry.match["dst_addr"] = "00:00:00:00:00:02"
entry.action["port"] = "5"
entry.insert()
try:
    entry.insert()
except P4RuntimeWriteException as error:
    report("duplicate", [one.canonical_code for _, one in error.errors])
entry = sh.TableEntry("acl")(action="drop")
entry.match["src_addr"] = "0x10&&&0xf0"
entry.match["total_len"] = "1..9"
entry.match["ether_type"] = "0x800"
entry.priority = 3
entry.insert()
report("acl", [(len(one.match._mk), one.priority) for one in sh.TableEntry("acl").read()])
report("all", sum(1 for _ in sh.TableEntry("l2").read()))

member = sh.ActionProfileMember("ecmp")(member_id=1, action="rewrite")
member.action["port"] = "1"
member.action["src_mac"] = "00:00:00:00:00:01"
member.action["dst_mac"] = "00:00:00:00:00:02"
member.insert()
group = sh.ActionProfileGroup("ecmp")(group_id=1)
group.add(1)
group.insert()
entry = sh.TableEntry("nexthop")
entry.match["nexthop_id"] = "7"
entry.group_id = 1
entry.insert()
report("groups", [one.group_id for one in sh.ActionProfileGroup("ecmp").read()])

counter = sh.CounterEntry("per_port")
counter.index = 3
counter.packet_count = 9
counter.modify()
report("counter", [one.packet_count for one in sh.CounterEntry("per_port").read()][:5])

entry = sh.TableEntry("settings")(action="set_seed", is_default=True)
entry.action["seed"] = "9"
entry.modify()
report("default", sum(1 for _ in sh.TableEntry("settings")(is_default=True).read()))

packet = sh.PacketOut(payload=bytes(14))
packet.metadata["egress_port"] = "4"
packet.metadata["op"] = "0"
packet.send()
sh.teardown()
