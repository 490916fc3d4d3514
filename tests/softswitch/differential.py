"""The software switch against BMv2, program by program: same entries, same packets, same outcome?

    python tests/softswitch/differential.py FOLDER [--json FILE] [--packets N] [--seed N]

FOLDER holds v1model programs (*.p4), for example p4c's testdata/p4_16_samples; none of them is part
of this project. Each is compiled ($P4C_BM2 or p4c-bm2-ss on the PATH), loaded by both switches over
P4Runtime, given the same random entries, groups and sessions, and sent the same random packets:
such as its own parser takes apart, whole, damaged and cut short. Several are on their way at once
(engines.BATCH), so BMv2's threads decide in which order they reach its registers. Where an outcome
differs, all packets are sent again one at a time; a packet whose outcome still differs is tried
alone on freshly loaded switches, and once more on BMv2, which tells what BMv2 makes of memory that
it did not clear, or of chance, from a real disagreement.

The result is JSON: versions, counts, why programs were left out, and every disagreement with its
program, packet and both outcomes.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4i, p4r
from google.protobuf import text_format

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "p4"), str(HERE / "p4rt")]

import engines  # noqa: E402 - the path first

from ringstep.softswitch import model  # noqa: E402
from ringstep.softswitch.engine import compile_pipeline  # noqa: E402
from ringstep.softswitch.errors import PipelineError  # noqa: E402

INGRESS_PORTS = (0, 1, 2, 3)
EGRESS_PORTS = 8
COMPILE_S = 60
ENTRIES_PER_TABLE = 6
DIFFERENCES_PER_PROGRAM = 5
Sent = tuple[int, bytes]
Outcome = list[Sent]


# --------------------------------------------------------------------------------------------
# What is drawn
# --------------------------------------------------------------------------------------------


class Draw:
    """Random values, among them those that the program itself compares with."""

    def __init__(self, seed: str, document: dict[str, Any]) -> None:
        self.random = random.Random(seed)
        found: set[int] = set()
        _constants(document.get("parsers", []), found)
        _constants(document.get("pipelines", []), found)
        _constants(document.get("actions", []), found)
        self._interesting = sorted(value for value in found if value >= 0) or [0]

    def value(self, width: int) -> int:
        top = (1 << width) - 1
        kind = self.random.randrange(4)
        if kind == 0:
            return self.random.choice(self._interesting) & top
        if kind == 1:
            return self.random.randrange(4) & top
        return self.random.randint(0, top) if kind == 2 else self.random.choice((0, 1, top))


def _constants(node: Any, found: set[int]) -> None:
    if isinstance(node, dict):
        if node.get("type") == "hexstr" and isinstance(node.get("value"), str):
            try:
                found.add(int(node["value"], 16))
            except ValueError:
                return
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            _constants(one, found)


def short(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def packet_for(program: model.Program, draw: Draw) -> bytes:
    """A packet that the program's parser takes apart along one random way."""
    data = bytearray()
    placed: dict[str, int] = {}
    peeks: list[tuple[int, int, int]] = []
    name, turns = program.start_state, 0

    def put(bit: int, width: int, value: int) -> None:
        end = bit + width
        while len(data) * 8 < end:
            data.append(draw.random.choice((0, 1, 2, 255, draw.random.randrange(256))))
        number = int.from_bytes(data, "big")
        shift = len(data) * 8 - end
        mask = (1 << width) - 1
        number = number & ~(mask << shift) | (value & mask) << shift
        data[:] = number.to_bytes(len(data), "big")

    cursor = 0
    while name is not None and turns < 40:
        turns += 1
        state = program.states[name]
        for op in state.ops:
            if isinstance(op, model.Extract):
                header = program.headers[op.header]
                placed[op.header] = cursor
                for one in header.fields.values():
                    at = cursor * 8 + one.offset
                    if not any(a < at + one.width and at < b for a, b, _ in peeks):
                        put(at, one.width, draw.value(one.width))
                cursor += header.size
            elif isinstance(op, model.Advance) and isinstance(op.bits, model.Const):
                put(cursor * 8, op.bits.value, draw.value(op.bits.value or 1))
                cursor += op.bits.value // 8
        transition = draw.random.choice(state.transitions) if state.transitions else None
        if transition is not None and transition.cases is not None:
            for key, (value, mask) in zip(state.key, transition.cases, strict=True):
                if isinstance(key, model.Lookahead):
                    at = cursor * 8 + key.offset
                    put(at, key.width, value & mask | draw.value(key.width) & ~mask)
                    peeks.append((at, at + key.width, value))
                elif key.header in placed and key.name != model.VALID:
                    kind = program.field(key)
                    at = placed[key.header] * 8 + kind.offset
                    put(at, kind.width, value & mask | draw.value(kind.width) & ~mask)
        name = None if transition is None else transition.next_state
    data += bytes(draw.random.randrange(256) for _ in range(draw.random.choice((0, 0, 1, 7, 40))))
    damage = draw.random.randrange(8)
    if damage == 0 and data:
        del data[draw.random.randrange(len(data)) :]
    elif damage == 1 and data:
        data[draw.random.randrange(len(data))] = draw.random.randrange(256)
    return bytes(data) or b"\0"


def entities_for(info: p4i.P4Info, draw: Draw) -> list[p4r.Update]:
    """Members, groups, entries, default actions, multicast groups and clone sessions."""
    rng = draw.random
    actions = {one.preamble.id: one for one in info.actions}
    updates: list[p4r.Update] = []

    def insert(kind: int = p4r.Update.INSERT, **entity: Any) -> None:
        updates.append(p4r.Update(type=kind, entity=p4r.Entity(**entity)))  # type: ignore[arg-type]

    def replicas() -> list[p4r.Replica]:
        pairs = {(rng.randrange(EGRESS_PORTS), rng.randrange(3)) for _ in range(rng.randrange(4))}
        return [p4r.Replica(egress_port=port, instance=rid) for port, rid in sorted(pairs)]

    def action_for(table: p4i.Table, unfit: str) -> p4r.Action | None:
        refs = [r for r in table.action_refs if r.Scope.Name(r.scope) != unfit]
        if not refs:
            return None
        action = actions[rng.choice(refs).id]
        made = p4r.Action(action_id=action.preamble.id)
        for param in action.params:
            value = draw.value(param.bitwidth)
            if param.bitwidth == 9:
                # Mostly a port that is watched; sometimes the drop port.
                value = rng.choice((*range(EGRESS_PORTS), 511))
            made.params.add(param_id=param.id, value=short(value))
        return made

    for number in range(1, 6):
        insert(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                multicast_group_entry=p4r.MulticastGroupEntry(
                    multicast_group_id=number, replicas=replicas()
                )
            )
        )
    for number in range(1, 16):
        insert(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                clone_session_entry=p4r.CloneSessionEntry(session_id=number, replicas=replicas())
            )
        )
    for profile in info.action_profiles:
        tables = [t for t in info.tables if t.preamble.id in profile.table_ids]
        if not tables:
            continue
        for member in range(1, 5):
            action = action_for(tables[0], "DEFAULT_ONLY")
            if action is not None:
                insert(
                    action_profile_member=p4r.ActionProfileMember(
                        action_profile_id=profile.preamble.id, member_id=member, action=action
                    )
                )
        if profile.with_selector:
            for group in range(1, 4):
                chosen = sorted(rng.sample(range(1, 5), rng.randrange(1, 5)))
                insert(
                    action_profile_group=p4r.ActionProfileGroup(
                        action_profile_id=profile.preamble.id,
                        group_id=group,
                        max_size=profile.max_group_size or 8,
                        members=[
                            p4r.ActionProfileGroup.Member(member_id=m, weight=1) for m in chosen
                        ],
                    )
                )
    profiles = {one.preamble.id: one for one in info.action_profiles}
    for table in info.tables:
        if table.is_const_table:
            continue
        profile = profiles.get(table.implementation_id)
        if not table.const_default_action_id and profile is None and rng.random() < 0.5:
            action = action_for(table, "TABLE_ONLY")
            if action is not None:
                insert(
                    p4r.Update.MODIFY,
                    table_entry=p4r.TableEntry(
                        table_id=table.preamble.id,
                        is_default_action=True,
                        action=p4r.TableAction(action=action),
                    ),
                )
        for priority in range(1, ENTRIES_PER_TABLE + 1 if table.match_fields else 0):
            entry = entry_for(table, draw, priority)
            if profile is not None:
                if profile.with_selector and rng.random() < 0.5:
                    entry.action.action_profile_group_id = rng.randrange(1, 4)
                else:
                    entry.action.action_profile_member_id = rng.randrange(1, 5)
            else:
                action = action_for(table, "DEFAULT_ONLY")
                if action is None:
                    break
                entry.action.action.CopyFrom(action)
            insert(table_entry=entry)
    return updates


def entry_for(table: p4i.Table, draw: Draw, priority: int) -> p4r.TableEntry:
    rng = draw.random
    entry = p4r.TableEntry(table_id=table.preamble.id)
    for one in table.match_fields:
        top = (1 << one.bitwidth) - 1
        kind = one.MatchType.Name(one.match_type)
        value = draw.value(one.bitwidth)
        if kind in ("TERNARY", "RANGE", "OPTIONAL"):
            entry.priority = priority
        if kind != "EXACT" and rng.random() < 0.3:
            continue
        made = entry.match.add(field_id=one.id)
        match kind:
            case "EXACT":
                made.exact.value = short(value)
            case "LPM":
                made.lpm.prefix_len = rng.randint(1, one.bitwidth)
                made.lpm.value = short(value & top ^ (top >> made.lpm.prefix_len) & value)
            case "TERNARY":
                mask = rng.choice((top, top, 1, rng.randint(1, top)))
                made.ternary.mask, made.ternary.value = short(mask), short(value & mask)
            case "OPTIONAL":
                made.optional.value = short(value)
            case "RANGE":
                low, high = sorted((value, draw.value(one.bitwidth)))
                if (low, high) == (0, top):
                    low = 1
                made.range.low, made.range.high = short(low), short(high)
    return entry


# --------------------------------------------------------------------------------------------
# One program
# --------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a run has found."""

    left_out: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    compared: list[str] = field(default_factory=list)
    packets: int = 0
    outputs: int = 0
    entries: int = 0
    entries_refused: int = 0
    entries_by_one_only: list[dict[str, str]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


class LeftOut(Exception):
    """Why a program is not compared."""


def compiled(compiler: str, source: Path, folder: Path) -> tuple[str, str]:
    """P4Info and BMv2 JSON of a program."""
    info, output = folder / "out.p4info.txtpb", folder / "out.json"
    for old in (info, output):
        old.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [compiler, "--arch", "v1model", "--p4runtime-files", info, "-o", output, source],
            capture_output=True, text=True, timeout=COMPILE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LeftOut("p4c takes too long") from None
    if done.returncode or not output.exists() or not info.exists():
        raise LeftOut("p4c does not compile it")
    return info.read_text(), output.read_text()


class Pair:
    """Both switches; BMv2 is started anew where it ended."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self.soft = engines.SoftSwitch()
        self.bmv2 = engines.Bmv2(binary)
        self._loaded = False

    def restart_bmv2(self) -> None:
        self.bmv2.close()
        self.bmv2 = engines.Bmv2(self._binary)
        self._loaded = False

    def close(self) -> None:
        self.soft.close()
        self.bmv2.close()

    def load(self, info: p4i.P4Info, json_text: str) -> None:
        """Load a program into both. Raises LeftOut."""
        if self._loaded:
            engines.forget_replicas(self.bmv2.client)
        config = p4r.ForwardingPipelineConfig(p4info=info, p4_device_config=json_text.encode())
        commit = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        try:
            self.soft.client.set_config(commit, config)
        except grpc.RpcError as error:
            raise LeftOut(f"the software switch: {general(error.details())}") from None
        try:
            self.bmv2.client.set_config(commit, config)
        except grpc.RpcError as error:
            self.restart_bmv2()
            raise LeftOut(f"BMv2: {general(error.details())}") from None
        self._loaded = True

    def write(self, updates: list[p4r.Update], report: Report | None, name: str) -> None:
        """Write the same updates to both; what only one takes is taken back."""
        for update in updates:
            refusals = {}
            for engine in (self.soft, self.bmv2):
                try:
                    engine.client.write_updates([update])
                except grpc.RpcError as error:
                    refusals[engine.name] = detail(error)
            if report is not None:
                report.entries += not refusals
                report.entries_refused += len(refusals) == 2
            if len(refusals) == 1:
                taker = self.bmv2 if "softswitch" in refusals else self.soft
                if report is not None:
                    kind = update.entity.WhichOneof("entity") or ""
                    ((engine_name, reason),) = refusals.items()
                    report.entries_by_one_only.append(
                        {"program": name, "entity": kind, "refused_by": engine_name,
                         "reason": general(reason)}
                    )  # fmt: skip
                if update.type == p4r.Update.INSERT:
                    undo = p4r.Update(type=p4r.Update.DELETE, entity=update.entity)
                    taker.client.write_updates([undo])
                else:
                    raise LeftOut("only one takes a default action")


def general(text: str | None) -> str:
    """An error without the names and numbers of its program."""
    text = re.sub(r"\([^()]*\)", "", text or "")
    return re.sub(r"\s+", " ", re.sub(r"'[^']*'|\"[^\"]*\"|\b\d+\b", "X", text))[:120].strip()


def detail(error: grpc.RpcError) -> str:
    from p4rt_rig import details

    try:
        (one,) = details(error)
    except (AssertionError, ValueError):
        return str(error.details())
    return str(one.message)


def outcomes(engine: Any, packets: list[Sent]) -> list[Outcome]:
    return [sorted(found) for found in engine.exchange(packets)]


def compare(
    pair: Pair, name: str, text: tuple[str, str], count: int, seed: int, report: Report
) -> None:
    """Compare one program. Raises LeftOut."""
    info = text_format.Parse(text[0], p4i.P4Info())
    document = json.loads(text[1])
    try:
        compile_pipeline(info, text[1])
    except PipelineError as error:
        raise LeftOut(f"the software switch: {general(str(error))}") from None
    program = model.load_program(text[1])
    draw = Draw(f"{seed} {name}", document)
    pair.load(info, text[1])
    updates = entities_for(info, draw)
    pair.write(updates, report, name)
    packets = [(draw.random.choice(INGRESS_PORTS), packet_for(program, draw)) for _ in range(count)]
    errors = pair.soft.switch.stats.error_drops
    ours = outcomes(pair.soft, packets)
    if pair.soft.switch.stats.error_drops != errors:
        raise AssertionError(f"{name}: {pair.soft.switch.stats.last_error}")
    try:
        theirs = outcomes(pair.bmv2, packets)
    except grpc.RpcError as error:
        pair.restart_bmv2()
        code = error.code().name
        raise LeftOut(
            "BMv2 does not finish" if code == "DEADLINE_EXCEEDED" else f"BMv2 ends: {code}"
        ) from None
    report.compared.append(name)
    report.packets += len(packets)
    report.outputs += sum(map(len, theirs))
    differing = [at for at in range(len(packets)) if ours[at] != theirs[at]]
    if not differing:
        return
    pair.load(info, text[1])
    pair.write(updates, None, "")
    in_turn = [
        [sorted(found) for found in engine.exchange(packets, 1)]
        for engine in (pair.soft, pair.bmv2)
    ]
    for at in differing[:DIFFERENCES_PER_PROGRAM]:
        packet = packets[at]
        if in_turn[0][at] == in_turn[1][at]:
            why: dict[str, Any] = {"alone": "agrees when packets go through one at a time"}
        else:
            why = alone(pair, info, text[1], updates, packet)
        report.differences.append(
            {
                "program": name,
                "port": packet[0],
                "packet": packet[1].hex(),
                "softswitch": shown(ours[at]),
                "bmv2": shown(theirs[at]),
                **why,
            }
        )


def shown(outcome: Outcome) -> list[list[Any]]:
    return [[port, data.hex()] for port, data in outcome]


def alone(
    pair: Pair, info: p4i.P4Info, json_text: str, updates: list[p4r.Update], packet: Sent
) -> dict[str, Any]:
    """What becomes of the packet as the first one, and the same on BMv2 once more."""
    found: list[Outcome] = []
    for _ in range(2):
        pair.load(info, json_text)
        pair.write(updates, None, "")
        found.append(outcomes(pair.bmv2, [packet])[0])
    ours = outcomes(pair.soft, [packet])[0]
    if found[0] != found[1]:
        kind = "BMv2 differs from itself"
    elif ours == found[0]:
        kind = "agrees when it is the first packet"
    else:
        kind = "differs when it is the first packet, too"
    return {"alone": kind, "softswitch_alone": shown(ours), "bmv2_alone": shown(found[0])}


# --------------------------------------------------------------------------------------------
# All programs
# --------------------------------------------------------------------------------------------


def version(command: str) -> str:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).split("\n")
    return next((one.strip() for one in reversed(lines) if one.strip()), "unknown")


def summary(report: Report, total: int) -> dict[str, Any]:
    kinds = collections.Counter(one["alone"] for one in report.differences)
    return {
        "programs": {
            "in_folder": total,
            "compared": len(report.compared),
            "alike": len(set(report.compared) - {d["program"] for d in report.differences}),
            "differing": len({one["program"] for one in report.differences}),
            "left_out": sum(map(len, report.left_out.values())),
        },
        "packets": report.packets,
        "frames_out": report.outputs,
        "entries": report.entries,
        "entries_refused_by_both": report.entries_refused,
        "entries_taken_by_one_only": len(report.entries_by_one_only),
        "differences": dict(kinds),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="v1model programs (*.p4)")
    parser.add_argument("--json", type=Path, help="where the whole result goes")
    parser.add_argument("--packets", type=int, default=200, help="per program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="name of a program; repeatable")
    options = parser.parse_args(arguments)
    compiler = os.environ.get("P4C_BM2") or shutil.which("p4c-bm2-ss")
    binary = engines.find_bmv2()
    if compiler is None or binary is None:
        parser.error(
            f"p4c-bm2-ss ($P4C_BM2): {compiler or 'not found'}; "
            f"simple_switch_grpc (${engines.VARIABLE}): {binary or 'not found'}"
        )
    engines.TIMEOUT_S = 20.0
    sources = [
        one
        for one in sorted(options.folder.glob("*.p4"))
        # A link of p4c's samples may lead out of the folder, to what is not there.
        if one.is_file()
        and "v1model.p4" in one.read_text(errors="replace")
        and (not options.only or one.stem in options.only)
    ]
    report = Report()
    started = time.monotonic()
    pair = Pair(binary)
    with tempfile.TemporaryDirectory() as folder:
        for number, source in enumerate(sources, 1):
            try:
                text = compiled(compiler, source, Path(folder))
                compare(pair, source.stem, text, options.packets, options.seed, report)
            except LeftOut as reason:
                report.left_out[str(reason)].append(source.stem)
            if sys.stderr.isatty():
                print(f"\r{number}/{len(sources)} {source.stem[:60]:60}", end="", file=sys.stderr)
    pair.close()
    report.seconds = time.monotonic() - started
    result = {
        "tool": "differential",
        "bmv2": version(binary),
        "p4c": version(compiler),
        "seed": options.seed,
        "packets_per_program": options.packets,
        "seconds": round(report.seconds, 1),
        **summary(report, len(sources)),
        "left_out": dict(sorted(report.left_out.items(), key=lambda item: -len(item[1]))),
        "entries_by_one_only": report.entries_by_one_only,
        "details": report.differences,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for key, value in result.items():
        if key not in ("details", "entries_by_one_only", "left_out"):
            print(f"{key}: {value}")
    for reason, names in result["left_out"].items():  # type: ignore[attr-defined]
        print(f"left out, {len(names)}: {reason} ({', '.join(names[:3])})")
    for one in report.differences:
        print(f"differs: {one['program']} port {one['port']} {one['packet']}: {one['alone']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
