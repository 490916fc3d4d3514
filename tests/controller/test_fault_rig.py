"""The parts of the fault run do what their names say, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from faultrig import database as database_rig
from faultrig import disk as disk_rig
from faultrig.database import PostgresServer
from faultrig.disk import SmallDisk
from faultrig.fabric import LeafSpine
from faultrig.processes import Child, RigError, SwitchProcess
from faultrig.reading import Action, Intruder, ReadError, program_names, read_switch
from finsy.proto import p4r
from free_ports import free_port

from ringstep.fabric import parse_topology
from ringstep.fabric.routing import route_tables


def test_fabric_is_a_topology_whose_routes_are_those_it_tells() -> None:
    fabric = LeafSpine(tors=3, spines=2, hosts=3)
    topology = parse_topology(fabric.toml({"tor1": "127.0.0.1:9"}), "fabric.toml")
    assert topology.switches["tor1"].p4runtime == "127.0.0.1:9"
    for name, table in route_tables(topology).items():
        assert set(topology.ports(name)) == fabric.ports(name)
        for host in fabric.host_names:
            hops = table.towards(topology.hosts[host])
            assert {hop.port for hop in hops} == fabric.ports_towards(name, host)


def test_process_that_ignores_signals_or_is_stopped_is_ended(tmp_path: Path) -> None:

    program = (
        "import signal, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(600)"
    )
    with Child("deaf", [sys.executable, "-c", program], tmp_path) as child:
        child.start()
        while "deaf" not in child.tail():
            assert child.alive
            time.sleep(0.01)
        child.signal(signal.SIGSTOP)
        assert child.stopped
        assert child.terminate(patience_s=0.2) == -signal.SIGKILL
    assert not child.alive


@pytest.mark.skipif(bool(disk_rig.why_not()), reason=disk_rig.why_not())
def test_full_disk_takes_no_byte_until_it_is_freed(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", mib=1)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(bytes(8192))
        disk.free()
        (disk.path / "more").write_bytes(bytes(8192))
    finally:
        disk.close()
    assert not os.path.ismount(disk.path)


@pytest.mark.slow
@pytest.mark.skipif(bool(database_rig.why_not()), reason=database_rig.why_not())
def test_database_that_is_killed_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    server = PostgresServer(tmp_path, fsync=False)
    try:
        server.start()
        where = f"host=127.0.0.1 port={server.port} user=ringstep dbname=ringstep"
        with psycopg.connect(where) as one:
            one.execute("CREATE TABLE facts (fact int)")
            one.execute("INSERT INTO facts VALUES (7)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(where, connect_timeout=1)
        server.start()
        with psycopg.connect(where, autocommit=True) as one:
            assert one.execute("SELECT fact FROM facts").fetchall() == [(7,)]
            assert server.drop_connections(os.getpid()) == 1
            with contextlib.suppress(Exception):
                time.sleep(0.1)
            with pytest.raises(psycopg.OperationalError):
                one.execute("SELECT 1")
        assert server.size_bytes() > 0
    finally:
        server.close()


@pytest.mark.slow
def test_intruder_writes_and_wipes_and_a_reader_sees_it(tmp_path: Path) -> None:
    from importlib.resources import files

    names = program_names()
    with SwitchProcess("one", 7, tmp_path, free_port()) as switch:
        switch.start()
        switch.wait_ready()
        with pytest.raises(ReadError):
            read_switch(switch.address, 7, names)
        with Intruder(switch.address, 7, names) as intruder:
            config = p4r.ForwardingPipelineConfig(
                p4info=names.info,
                p4_device_config=(
                    files("ringstep") / "p4build" / "ringstep_v1model.json"
                ).read_bytes(),
            )
            intruder.set_program(config)
            intruder.write(
                [(p4r.Update.INSERT, names.entry("block_map", {"job": 3, "egress_port": 4},
                                                 "set_block", block=5))]
            )  # fmt: skip
            held = read_switch(switch.address, 7, names)
            assert held.table("block_map") == {
                (("egress_port", 4), ("job", 3)): Action("set_block", (("block", 5),))
            }
            with Intruder(switch.address, 7, names) as other:
                other.load_program(cookie=99)
            assert read_switch(switch.address, 7, names).size == 0
            with pytest.raises(ReadError, match="PERMISSION_DENIED"):
                intruder.write([])


def test_switch_that_does_not_start_is_the_rigs_fault(tmp_path: Path) -> None:
    with SwitchProcess("one", 1, tmp_path, port=1) as switch:
        switch.command += ["--no-such-option"]
        switch.start()
        with pytest.raises(RigError, match="did not start"):
            switch.wait_ready()
