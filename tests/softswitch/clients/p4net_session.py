"""A session of p4net's client against a server that runs nothing yet: ADDRESS FOLDER.

Runs in p4net's own environment. FOLDER holds the programs. Prints one line per check, which the
test compares; after a line `INJECT port bytes` the test puts that frame into the switch.
"""

import queue
import sys
from pathlib import Path

from p4net.control import DuplicateEntryError, EntryNotFoundError, P4RuntimeClient, P4RuntimeError

ADDRESS, FOLDER = sys.argv[1], Path(sys.argv[2])
CPU_PORT = 510


def report(name, value):
    print(f"RESULT {name}: {value}", flush=True)


def push(client, name, action="VERIFY_AND_COMMIT"):
    client.set_pipeline_config(
        bmv2_json=FOLDER / f"{name}.json", p4info=FOLDER / f"{name}.p4info.txtpb", action=action
    )


with P4RuntimeClient(ADDRESS, 1, election_id=(0, 7)) as client:
    # -- pipeline configs: all that the client knows
    for action in ("VERIFY", "VERIFY_AND_SAVE"):
        push(client, "entities", action)
    push(client, "copies")
    try:
        push(client, "entities", "RECONCILE_AND_COMMIT")
    except P4RuntimeError as error:
        report("reconcile", "UNIMPLEMENTED" in str(error))
    push(client, "entities")
    config, index = client.get_pipeline_config()
    report("config", (config == (FOLDER / "entities.json").read_bytes(), len(index.table_names)))

    # -- tables of every match kind
    ingress = "EntitiesIngress"
    l2, acl, route = (f"{ingress}.{name}" for name in ("l2", "acl", "route"))
    two = {"dst_addr": "00:00:00:00:00:02"}
    client.insert_table_entry(l2, two, f"{ingress}.forward", {"port": 5})
    try:
        client.insert_table_entry(l2, two, f"{ingress}.forward", {"port": 5})
    except DuplicateEntryError:
        report("duplicate", True)
    client.modify_table_entry(l2, two, f"{ingress}.forward", {"port": 300})
    client.insert_table_entry(
        acl,
        {"src_addr": ("0x10", "0xf0"), "total_len": (1, 9), "ether_type": 0x800},
        f"{ingress}.set_class",
        {"traffic_class": 3},
        priority=4,
    )
    client.insert_table_entry(
        route, {"dst_addr": "10.0.0.0/8"}, f"{ingress}.set_nexthop", {"nexthop_id": 258}
    )
    for table in (l2, acl, route):
        for entry in client.list_table_entries(table):
            report(table, (sorted(entry["match"].items()), entry["params"], entry["priority"]))
    report("all tables", len(client.list_table_entries()))

    # -- packets from and to the controller
    arrived = queue.Queue()
    client.on_packet_in(lambda payload, metadata: arrived.put((payload, metadata)))
    client.send_packet_out(bytes(range(14)), {"egress_port": CPU_PORT, "op": 0})
    report("round trip", arrived.get(timeout=20))
    print("INJECT 9 000000000002000000000001ffff", flush=True)
    sys.stdin.readline()

    # -- counters
    cell = client.read_counter(f"{ingress}.per_port", 9)
    report("counter", (cell.packet_count, cell.byte_count))
    client.reset_counter(f"{ingress}.per_port")
    cells = client.read_counter(f"{ingress}.per_port")
    report("counters", (len(cells), sum(one.packet_count for one in cells.values())))

    report("cleared", client.clear_table(acl))
    client.delete_table_entry(l2, two)
    try:
        client.delete_table_entry(l2, two)
    except EntryNotFoundError:
        report("gone", len(client.list_table_entries(l2)))

    # -- multicast
    push(client, "copies")
    client.add_multicast_group(9, [3, 4])
    client.insert_table_entry(
        "CopiesIngress.todo", {"code": 1}, "CopiesIngress.multicast", {"group": 9}
    )
    print("INJECT 9 0100000000000000", flush=True)
    sys.stdin.readline()
    client.modify_multicast_group(9, [5])
    report("groups", client.list_multicast_groups())
    client.delete_multicast_group(9)
    report("groups", client.list_multicast_groups())
