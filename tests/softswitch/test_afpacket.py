"""Frames over AF_PACKET, on veth pairs in a network namespace that the test makes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SESSION = Path(__file__).resolve().parent / "data" / "veth_session.py"


def namespace_command() -> list[str]:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip: apt-get install util-linux iproute2")
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    probe = subprocess.run(
        [*command, "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"no network namespace with veth here ({probe.stderr.strip()}); run as root")
    return command


def test_rdma_write_and_vlan_tag_cross_the_switch_on_veth() -> None:
    done = subprocess.run(
        [*namespace_command(), sys.executable, str(SESSION)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ok"
