"""Clients that others wrote drive the server: p4runtime-shell, the specification group's own, and
p4net's. Each has an environment of its own, which `make clients` makes (and `make test` with it).
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4rt_rig import DATA, Rig, load_json, load_p4info

ROOT = Path(__file__).parents[3]
SESSIONS = DATA.parent / "clients"


def python_of(client: str) -> str:
    """The interpreter of a client's environment; skips the test where there is none."""
    variable = f"RINGSTEP_{client.upper().replace('-', '_')}_PYTHON"
    named = os.environ.get(variable)
    made = ROOT / f".venv-{client}" / "bin" / "python"
    if named is None and not made.exists():
        pytest.skip(
            f"{client} needs an environment of its own: `make clients` makes it, or name the "
            f"Python of one that has it in ${variable}"
        )
    return named or str(made)


@contextmanager
def session(client: str, script: str, folder: Path, rig: Rig) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [python_of(client), SESSIONS / script, rig.server.address, folder],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def run(
    client: str, script: str, folder: Path, rig: Rig
) -> tuple[list[str], list[tuple[int, bytes]]]:
    """What the session reported, and what left the switch meanwhile."""
    results = []
    sent = []
    with session(client, script, folder, rig) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        for line in process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "RESULT":
                results.append(rest)
            elif word in ("INJECT", "SENT"):
                if word == "INJECT":
                    port, frame = rest.split()
                    rig.receive(int(port), bytes.fromhex(frame))
                else:
                    sent.append(rig.sent.get(timeout=20))
                process.stdin.write("\n")
                process.stdin.flush()
        assert process.wait(60) == 0, process.stderr.read()
    while not rig.sent.empty():
        sent.append(rig.sent.get())
    return results, sent


@pytest.mark.slow
def test_a_session_of_p4runtime_shell(rig: Rig) -> None:
    results, sent = run("p4runtime-shell", "p4runtime_shell_session.py", DATA, rig)
    assert results == [
        "duplicate: [6]",
        "acl: [(3, 3)]",
        "all: 1",
        "groups: [1]",
        "counter: [0, 0, 0, 9, 0]",
        "default: 1",
        "multicast: [(9, 2)]",
        "clones: [100]",
        "direct meter: [1]",
        "meter: [4]",
        "digest entry: [1000000000000]",
        "digest: ['05', '012c', '07', '01', '010203040506']",
        "left: []",
    ]
    assert [port for port, _ in sent] == [4, 2]


@pytest.mark.slow
def test_a_session_of_p4net(rig: Rig, tmp_path: Path) -> None:
    # Its generated code cannot read the maps of type_info, which only digests need.
    for name in ("entities", "copies"):
        info = load_p4info(name)
        info.ClearField("digests")
        info.ClearField("type_info")
        (tmp_path / f"{name}.p4info.txtpb").write_text(text_format.MessageToString(info))
        (tmp_path / f"{name}.json").write_bytes(load_json(name))
    results, sent = run("p4net", "p4net_session.py", tmp_path, rig)
    assert results == [
        "reconcile: True",
        "config: (True, 7)",
        "duplicate: True",
        "EntitiesIngress.l2: ([('dst_addr', b'\\x02')], {'port': b'\\x01,'}, None)",
        "EntitiesIngress.acl: ([('ether_type', b'\\x08\\x00'), "
        "('src_addr', (b'\\x10', b'\\xf0')), ('total_len', (b'\\x01', b'\\t'))], "
        "{'traffic_class': b'\\x03'}, 4)",
        "EntitiesIngress.route: ([('dst_addr', (b'\\n\\x00\\x00\\x00', 8))], "
        "{'nexthop_id': b'\\x01\\x02'}, None)",
        # With the two const entries of `fixed`.
        "all tables: 5",
        "round trip: (b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07\\x08\\t\\n\\x0b\\x0c\\r', "
        "{'ingress_port': 510, 'op': 3})",
        "counter: (1, 14)",
        "counters: (16, 0)",
        "cleared: 1",
        "gone: 0",
        "groups: {9: [5]}",
        "groups: {}",
    ]
    assert [port for port, _ in sent] == [300, 3, 4]
