"""Fabrics that the tests of this folder share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringstep.fabric import Topology, parse_topology

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # For brute_force, beside these tests.

TWO_TIER = """
[fabric]
name = "two-tier"

[[switch]]
name = "tor1"
device_id = 1
p4runtime = "127.0.0.1:9559"
role = "tor"
mac = "02:00:00:00:01:00"

[[switch]]
name = "tor2"
device_id = 2
role = "tor"
mac = "02:00:00:00:02:00"

[[switch]]
name = "spine1"
device_id = 11
role = "spine"
mac = "02:00:00:00:11:00"

[[switch]]
name = "spine2"
device_id = 12
role = "spine"
mac = "02:00:00:00:12:00"

[[host]]
name = "h1"
ip = ["10.0.1.1", "fd00:1::1"]
mac = "02:00:00:01:00:01"

[[host]]
name = "h2"
ip = ["10.0.1.2", "fd00:1::2"]
mac = "02:00:00:01:00:02"

[[host]]
name = "h3"
ip = ["10.0.2.3", "fd00:2::3"]
mac = "02:00:00:01:00:03"

[[host]]
name = "h4"
ip = "10.0.2.4"
mac = "02:00:00:01:00:04"

[[link]]
a = "tor1:1"
b = "h1"
rate = "10G"
delay = "1us"

[[link]]
a = "tor1:2"
b = "h2"
rate = "10G"

[[link]]
a = "tor2:1"
b = "h3"
rate = "10G"

[[link]]
a = "h4"
b = "tor2:2"
rate = "10G"

[[link]]
a = "tor1:11"
b = "spine1:1"
rate = "40G"
red = { q_min = 100, q_max = 400 }

[[link]]
a = "tor1:12"
b = "spine2:1"
rate = "40G"
red = { enabled = false }

[[link]]
a = "tor2:11"
b = "spine1:2"
rate = "40G"

[[link]]
a = "tor2:12"
b = "spine2:2"
rate = "40G"
"""


@pytest.fixture
def two_tier_text() -> str:
    return TWO_TIER


@pytest.fixture
def two_tier() -> Topology:
    """Two ToRs with two hosts each, joined by two spines."""
    return parse_topology(TWO_TIER, "two-tier.toml")
