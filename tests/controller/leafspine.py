"""Leaf-spine fabrics of any size for tests, and jobs on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ringstep.controller.jobs import JobSpec, MatchKind
from ringstep.fabric import Topology, parse_topology
from ringstep.protocol.marker import PROFILES, Scope

PAIR = JobSpec(
    name="pair",
    rings=(),
    queue_pairs=(),
    match=MatchKind.PAIR,
    tag=None,
    profile="ringstep",
    scope=Scope.PORT,
    params=PROFILES["ringstep"].params,
)


def ring_job(name: str, *rings: Sequence[str], **changes: Any) -> JobSpec:
    """A job found by address pair."""
    return replace(PAIR, name=name, rings=tuple(tuple(ring) for ring in rings), **changes)


def leaf_spine_text(tors: int, spines: int, hosts: int, double_homed: Sequence[str] = ()) -> str:
    """Hosts ``h<tor>-<number>`` from 1 on ports 1.., uplinks from port 101 on."""
    text = []
    macs = iter(range(1, 10_000))
    for role, count in (("tor", tors), ("spine", spines)):
        text += [
            f'[[switch]]\nname = "{role}{n}"\ndevice_id = {next(macs)}\nrole = "{role}"\n'
            f'mac = "02:00:00:00:{n:02x}:{role == "tor":02x}"'
            for n in range(1, count + 1)
        ]
    links = []
    for t in range(1, tors + 1):
        for h in range(1, hosts + 1):
            name, number = f"h{t}-{h}", next(macs)
            text.append(
                f'[[host]]\nname = "{name}"\nip = "10.{t}.0.{h}"\n'
                f'mac = "02:00:00:01:{number // 256:02x}:{number % 256:02x}"'
            )
            links.append((f"tor{t}:{h}", name))
            if name in double_homed:
                links.append((f"tor{t % tors + 1}:{50 + h}", name))
        links += [(f"tor{t}:{100 + s}", f"spine{s}:{t}") for s in range(1, spines + 1)]
    text += [f'[[link]]\na = "{a}"\nb = "{b}"\nrate = "10G"\ndelay = "1us"' for a, b in links]
    return "\n\n".join(text)


def leaf_spine(tors: int, spines: int, hosts: int, double_homed: Sequence[str] = ()) -> Topology:
    """As :func:`leaf_spine_text`."""
    return parse_topology(leaf_spine_text(tors, spines, hosts, double_homed), "leafspine.toml")
