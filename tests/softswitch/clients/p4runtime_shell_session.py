"""A session of p4runtime-shell against a server that runs nothing yet: ADDRESS FOLDER.

Runs in p4runtime-shell's own environment (it pins a protobuf that finsy cannot use). FOLDER holds
the programs. Prints one line per check, which the test compares; after a line `INJECT port bytes`
the test puts that frame into the switch.
"""

import os
import sys
import traceback

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

ADDRESS, FOLDER = sys.argv[1:]


def give_up(*error):
    """End at an error, though the client has threads that would go on."""
    traceback.print_exception(*error)
    os._exit(1)


sys.excepthook = give_up


def program(name, election):
    sh.setup(
        device_id=1,
        grpc_addr=ADDRESS,
        election_id=(0, election),
        config=sh.FwdPipeConfig(f"{FOLDER}/{name}.p4info.txtpb", f"{FOLDER}/{name}.json"),
        verbose=False,
    )


def report(name, value):
    print(f"RESULT {name}: {value}", flush=True)


# -- tables, profiles, counters, packet-out

program("entities", 1)
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
print("SENT", flush=True)
sys.stdin.readline()
sh.teardown()

# -- multicast, clones, meters, digests

program("copies", 2)
group = sh.MulticastGroupEntry(9)
group.add(3, 1).add(4, 2)
group.insert()
report("multicast", [(one.group_id, len(one.replicas)) for one in sh.MulticastGroupEntry().read()])
session = sh.CloneSessionEntry(100)
session.add(8, 5)
session.packet_length_bytes = 12
session.insert()
report("clones", [one.session_id for one in sh.CloneSessionEntry().read()])

entry = sh.TableEntry("limits")(action="metered")
entry.match["code"] = "0x01&&&0xff"
entry.priority = 1
entry.meter_config.cir = entry.meter_config.pir = 1
entry.meter_config.cburst = entry.meter_config.pburst = 1
entry.insert()
report("direct meter", [one.cburst for one in sh.DirectMeterEntry("by_entry").read()])
meter = sh.MeterEntry("by_port")
meter.index = 2
meter.cir, meter.cburst, meter.pir, meter.pburst = 1, 2, 3, 4
meter.modify()
report("meter", [one.pburst for one in sh.MeterEntry("by_port")(index=2).read()])

digests = sh.DigestList()
digest = sh.DigestEntry("learned_t")
digest.ack_timeout_ns = 1_000_000_000_000
digest.insert()
report("digest entry", [one.ack_timeout_ns for one in sh.DigestEntry("learned_t").read()])
entry = sh.TableEntry("todo")(action="learn")
entry.match["code"] = "5"
entry.action["port"] = "2"
entry.action["last"] = "1"
entry.insert()
print("INJECT 300 0500000000000000", flush=True)
message = digests.digest_list_queue.get(timeout=20).digest
report("digest", [one.bitstring.hex() for one in message.data[0].struct.members])
session.delete()
group.delete()
report("left", [*sh.MulticastGroupEntry().read(), *sh.CloneSessionEntry().read()])
sh.teardown()
