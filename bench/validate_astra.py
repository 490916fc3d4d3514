"""The simulator against results of astra-sim's ns-3 backend: flow by flow, and by distribution.

``--reference`` is a folder of JSON files with results of that backend; docs/validation.md says how
they come about and what each gate compares. Each case is run again on the simulator's core in its
ns3-compat settings: packets of 36 + 1000 bytes, ACKs of 48, whole nanoseconds, ECMP hashed by node
id, a queue pair and a source port per step, counted arrivals, the sender's last ACK as arrival.

Deterministic gates compare the completion time of every flow (i, ii, iii) or collective (iv, vi);
rows split a gate by what its cases have on (PFC, DCQCN, a window).
Gate v compares medians over ECMP seeds and the distributions of completion times; its p-values come
from permutations of whole runs, because flows of one run are not independent.

Exit status: 0 all gates kept, 1 one was missed, 2 nothing to compare.

    python bench/validate_astra.py --reference DIR [DIR ...] [--gate i,ii,iii,iv,v,vi] [--seeds N]
        [--cases] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from ringstep_ns3 import _core as core
except ImportError:
    sys.exit("the simulator is not installed: pip install ./ns3-model")

Json = dict[str, Any]
Floats = npt.NDArray[np.float64]

GATES = ("i", "ii", "iii", "iv", "v", "vi")
ENDPOINT_NS = 10
FREE_MEM_BW = 1 << 20  # bytes per ns and above: the reduction of a chunk takes 0 ns
PERMUTATIONS = 1000
ENOUGH_RUNS = 100  # with fewer, the median's own error is as large as the limit


# Largest share by which a flow (i, ii, iii) or a collective (iv, vi) may deviate; v: the median.
LIMITS = {"i": 0.0, "ii": 0.001, "iii": 0.001, "iv": 0.0, "v": 0.02, "vi": 0.001}


@dataclass
class Comparison:
    """One case: how many flows agree to the ns, and the largest and the overall deviation."""

    name: str
    flows: int
    equal: int
    worst_fct: float
    cct_ns: int | None
    reference_cct_ns: int | None

    @property
    def exact(self) -> bool:
        """Whether all of it agrees to the nanosecond."""
        return self.equal == self.flows and self.cct_ns == self.reference_cct_ns

    @property
    def deviation(self) -> float:
        """Of the collective; of the flow that deviates most where there is none."""
        if self.cct_ns is None or self.reference_cct_ns is None:
            return self.worst_fct
        return self.cct_ns / self.reference_cct_ns - 1


@dataclass
class Gate:
    """A deterministic gate or a part of it."""

    name: str
    cases: list[Comparison] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean deviation, with its sign."""
        return float(np.mean([c.deviation for c in self.cases]))

    @property
    def worst(self) -> float:
        """The deviation of the case that deviates most, with its sign."""
        return max((c.deviation for c in self.cases), key=abs)

    @property
    def limit(self) -> float:
        """What the gate allows every case."""
        return LIMITS[self.name.split()[0]]

    @property
    def kept(self) -> bool:
        """Whether every case keeps the limit."""
        return abs(self.worst) <= self.limit

    def row(self) -> Json:
        """Return the gate for ``--json``."""
        return {
            "gate": self.name,
            "cases": len(self.cases),
            "exact_cases": sum(c.exact for c in self.cases),
            "cases_in_limit": sum(abs(c.deviation) <= self.limit for c in self.cases),
            "flows": sum(c.flows for c in self.cases),
            "exact_flows": sum(c.equal for c in self.cases),
            "mean_deviation": self.mean,
            "worst_deviation": self.worst,
            "limit": self.limit,
            "kept": self.kept,
        }


# --- one run --------------------------------------------------------------------------------------


def rate_bps(text: str) -> int:
    return round(float(text.removesuffix("Gbps")) * 1e9)


def delay_ns(text: str) -> int:
    return round(float(text.removesuffix("ms")) * 1e6)


def topology(params: Json) -> str:
    """Return the fabric of the reference as a topology file: 4 ToR and 4 spine switches."""
    n = params["n"]
    tor = [h % 4 if params["placement"] == "interleaved" else h // (n // 4) for h in range(n)]
    links = [(h, n + tor[h]) for h in range(n)]
    links += [(n + t, n + 4 + s) for t in range(4) for s in range(4)]
    lines = [f"{n + 8} 8 {len(links)}", " ".join(str(n + i) for i in range(8))]
    return "\n".join(lines + [f"{a} {b} {params['rate']} {params['delay']} 0" for a, b in links])


def network(params: Json, text: str, ecmp_hash: str) -> core.Network:
    """Build the fabric of a topology file: nodes by id, then links in the order of the lines."""
    lines = text.strip().splitlines()
    nodes, _, count = map(int, lines[0].split())
    switches = set(map(int, lines[1].split()))
    bps = rate_bps(params["rate"])
    low, high, p_max = params["red"]
    red = core.RedEntry(
        rate_bps=bps, k_min_bytes=round(low * 1000), k_max_bytes=round(high * 1000), p_max=p_max
    )
    config = core.SwitchConfig(
        buffer_bytes=params["buffer_mb"] << 20,
        pfc=core.PfcConfig(enabled=True, headroom="hpcc", pause_bytes=31),
        red=[red] if params["cc_mode"] == 1 else [],
        ecmp_hash=ecmp_hash,
    )
    net = core.Network()
    for node in range(nodes):
        if node in switches:
            net.add_switch(config)
        else:
            net.add_host()
    for line in lines[2 : 2 + count]:
        a, b, rate, delay, _ = line.split()
        net.add_link(int(a), int(b), rate_bps(rate), delay_ns(delay))
    return net


def simulation(net: core.Network, params: Json, seed: int = 1) -> core.Simulation:
    cc = core.CcConfig(preset=params["preset"])
    if params["cc_mode"] != 1:
        cc = core.CcConfig(kind="fixed")
    window = "none"
    if params["window"]:
        window = "variable" if params["var_win"] else "bdp"
    transport = core.TransportConfig(
        mtu_bytes=params["payload"],
        header_bytes=36,
        ack_bytes=48,
        cc=cc,
        window=window,
        rto_ns=0,
        round_to_ns=True,
        sport_base=10_000,
        dport=100,
    )
    stats = core.StatsConfig(steps=False, sample_ns=0, queue_bin_bytes=0)
    return core.Simulation(net, transport, seed=seed, stats=stats)


def add_ring(sim: core.Simulation, params: Json) -> None:
    n = params["n"]
    sim.add_job(
        core.JobSpec(
            job_id=1,
            hosts=list(range(n)),
            ops=[core.Op(kind="all_reduce", bytes_=params["chunk"] * n)],
            dependency="count",
            notify="sender_ack",
            endpoint_delay_ns=ENDPOINT_NS,
            rank_delay_ns=[ENDPOINT_NS] * n,
        )
    )


def pin_paths(net: core.Network, case: Json) -> None:
    """Send each flow's data over the spine that the reference recorded."""
    n = case["params"]["n"]
    links = {net.link_ends(i): i for i in range(2 * net.cables)}
    tor = {a: b for a, b in links if a < n}
    for src, dst, *_, spine, _ in case["fct"]:
        if spine is None:
            continue
        way = [src, tor[src], n + 4 + spine, tor[dst], dst]
        net.set_planned_path(src, dst, 0, [links[a, b] for a, b in itertools.pairwise(way)])


def flow_times(sim: core.Simulation) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Map (source, destination, source port) to (start, completion time) in ns."""
    table = sim.flows()
    names = ("src", "dst", "sport", "start_ns", "end_ns")
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return {(src, dst, sport): (start, end - start) for src, dst, sport, start, end in rows}


def compare(case: Json, text: str) -> Comparison:
    """Run one deterministic case again."""
    params = case["params"]
    net = network(params, text, "ns3_compat")
    if params["seed"] != 0:
        pin_paths(net, case)
    sim = simulation(net, params)
    if params["flows"] is None:
        add_ring(sim, params)
    else:
        ports: dict[tuple[int, int], int] = {}
        for src, dst, size, start in params["flows"]:
            port = ports.get((src, dst), 10_000)
            ports[src, dst] = port + 1
            sim.add_flow(core.FlowSpec(src=src, dst=dst, bytes_=size, start_ns=start, sport=port))
    sim.run()
    ours = flow_times(sim)
    theirs = {(r[0], r[1], r[2]): (r[5], r[6]) for r in case["fct"]}
    cct = None
    if params["flows"] is None:
        cct = int(sim.op_ranks()["end_ns"].max())
    return Comparison(
        name=case["case"],
        flows=len(theirs),
        equal=sum(ours.get(key) == value for key, value in theirs.items()),
        worst_fct=max(abs(ours[key][1] / fct - 1) for key, (_, fct) in theirs.items()),
        cct_ns=cct,
        reference_cct_ns=case["cct_ns"],
    )


def unable(params: Json) -> str | None:
    """Say why a deterministic case cannot be run here, or None."""
    if params["flows"] is None:
        if params["local_mem_bw"] < FREE_MEM_BW:
            return "the reference's ranks take time to reduce"
        if params["seed"] != 0:
            return "the reference's ECMP seed is not 0"
    return None


def part(gate: str, case: Json) -> str:
    """Name the row of the table that a case belongs to."""
    params = case["params"]
    if gate == "iii" and params["cc_mode"] == 1:
        return "iii dcqcn"
    if gate == "iii" and case["pfc_pauses"] > 0:
        return "iii pfc"
    if gate in ("iv", "vi"):
        return f"{gate} window" if params["window"] else f"{gate} no window"
    return gate


# --- distributions --------------------------------------------------------------------------------


@dataclass
class Sample:
    """Runs over seeds: completion time of each collective in ms, of its flows in ns (or none)."""

    cct_ms: Floats
    fct_ns: list[Floats]


def our_runs(params: Json, seeds: int) -> Sample:
    """Run the ring over ``seeds`` seeds of our own: ECMP and RED differ in each."""
    cct, fct = [], []
    for seed in range(1, seeds + 1):
        net = network(params, topology(params), "seeded")
        sim = simulation(net, params, seed)
        add_ring(sim, params)
        sim.run()
        cct.append(int(sim.op_ranks()["end_ns"].max()) / 1e6)
        table = sim.flows()
        fct.append(table["end_ns"].astype(np.float64) - table["start_ns"].astype(np.float64))
    return Sample(np.array(cct), fct)


def reduction_ms(params: Json) -> float:
    """Time that a rank of the reference spends on reductions, which ours does not model."""
    per_step = int(params["chunk"]) // int(params["local_mem_bw"])
    return 3 * per_step * (int(params["n"]) - 1) / 1e6


def ks(a: list[Floats], b: list[Floats], rng: np.random.Generator) -> tuple[float, float]:
    """Return the distance of Kolmogorov and Smirnov between two sets of runs, and its p-value.

    The p-value is the share of random divisions of the runs into sets of these sizes that are at
    least as far apart.
    """
    runs = [*a, *b]
    values = np.concatenate(runs)
    owner = np.repeat(np.arange(len(runs)), [len(r) for r in runs])
    order = np.argsort(values, kind="stable")
    owner = owner[order]
    last = np.append(np.diff(values[order]) > 0, True)  # between equal values is no step

    def distance(first: npt.NDArray[np.bool_]) -> float:
        inside = first[owner]
        share = int(np.count_nonzero(inside))
        up = np.where(inside, 1 / share, -1 / (len(inside) - share))
        steps: Floats = np.cumsum(up)
        return float(np.abs(steps[last]).max())

    first = np.arange(len(runs)) < len(a)
    found = distance(first)
    beyond = sum(distance(rng.permutation(first)) >= found - 1e-12 for _ in range(PERMUTATIONS))
    return found, (beyond + 1) / (PERMUTATIONS + 1)


def median_error(sample: Floats, rng: np.random.Generator) -> float:
    """Return the standard error of the median (bootstrap)."""
    draws = rng.choice(sample, size=(2000, len(sample)))
    return float(np.median(draws, axis=1).std())


def distribution(name: str, reference: Sample, ours: Sample, shift_ms: float) -> Json:
    """Compare two sets of runs; ``shift_ms`` is added to our completion times."""
    rng = np.random.default_rng(1)
    mine = ours.cct_ms + shift_ms
    there, here = float(np.median(reference.cct_ms)), float(np.median(mine))
    error = float(np.hypot(median_error(reference.cct_ms, rng), median_error(mine, rng)) / there)
    deviation = here / there - 1
    enough = min(len(mine), len(reference.cct_ms)) >= ENOUGH_RUNS
    distance, p = ks([np.array([x]) for x in reference.cct_ms], [np.array([x]) for x in mine], rng)
    row: Json = {
        "gate": "v",
        "case": name,
        "runs": [len(reference.cct_ms), len(mine)],
        "reference_ms": [reference.cct_ms.min(), there, reference.cct_ms.max()],
        "ours_ms": [mine.min(), here, mine.max()],
        "reduction_ms": shift_ms,
        "median_deviation": deviation,
        "median_error": error,
        "cct_ks": distance,
        "cct_p": p,
        "fct_ks": None,
        "fct_p": None,
        "fct_ks_floor": None,
        "limit": LIMITS["v"],
        "kept": abs(deviation) <= LIMITS["v"] if enough else None,
    }
    if reference.fct_ns:
        row["fct_ks"], row["fct_p"] = ks(reference.fct_ns, ours.fct_ns, rng)
        row["fct_ks_floor"] = ks(reference.fct_ns[::2], reference.fct_ns[1::2], rng)[0]
    return row


def statistical(path: Path, data: Json) -> Iterator[tuple[str, Json, Sample]]:
    """Yield (name, parameters, sample) of a file of gate v."""
    if "runs" in data:
        cct = np.array([r["cct_ns"] for r in data["runs"]]) / 1e6
        fct = [np.array([f[6] for f in r["fct"]], dtype=np.float64) for r in data["runs"]]
        yield path.stem, data["runs"][0]["params"], Sample(cct, fct)
        return
    for kind in ("window", "nowindow"):
        if kind not in data:
            continue
        settings = dict(
            line.split(None, 1)
            for line in data[kind]["configs_seed0"]["network"].splitlines()
            if " " in line
        )
        params = {
            "n": len(data[kind]["configs_seed0"]["topology"].splitlines()) - 2 - 16,
            "chunk": 1 << 20,
            "placement": "interleaved",
            "window": settings["HAS_WIN"] == "1",
            "var_win": settings["VAR_WIN"] == "1",
            "preset": "hpcc_config" if settings["RP_TIMER"] == "900" else "hpcc_run",
            "cc_mode": int(settings["CC_MODE"]),
            "red": [float(settings[k].split()[2]) for k in ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP")],
            "rate": "10Gbps",
            "delay": "0.001ms",
            "buffer_mb": int(settings["BUFFER_SIZE"]),
            "payload": int(settings["PACKET_PAYLOAD_SIZE"]),
            "local_mem_bw": data[kind]["configs_seed0"]["system"]["local-mem-bw"],
        }
        sample = Sample(np.array(data[kind]["cct_ns_by_seed"]) / 1e6, [])
        yield f"{path.stem} {kind}", params, sample


# --- all ------------------------------------------------------------------------------------------


@dataclass
class Report:
    """All that was compared, and how many cases were not, by reason."""

    gates: dict[str, Gate] = field(default_factory=dict)
    distributions: list[Json] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether no gate was missed."""
        return all(g.kept for g in self.gates.values()) and all(
            d["kept"] is not False for d in self.distributions
        )


def read(folders: list[Path]) -> Iterator[tuple[Path, str, Json]]:
    """Yield (file, gate, contents) of every reference file; the gate is in the file's name."""
    for folder in folders:
        if not folder.is_dir():
            print(
                f"--reference {folder}: no such folder. It holds results of astra-sim's ns-3 "
                "backend as JSON, which are not part of this repository; docs/validation.md "
                'describes under "How the reference came about" how to get them.',
                file=sys.stderr,
            )
            sys.exit(2)
        for path in sorted(folder.glob("*.json")):
            gate = path.stem.split("_")[0]
            if gate in GATES:
                yield path, gate, json.loads(path.read_text())


def validate(folders: list[Path], wanted: set[str], seeds: int, *, say: bool) -> Report:
    report = Report()
    known: dict[str, Sample] = {}

    def note(text: str) -> None:
        if say:
            print(text, file=sys.stderr, flush=True)

    for path, gate, data in read(folders):
        if gate not in wanted:
            continue
        note(f"{path.name} ...")
        if gate == "v":
            for name, params, reference in statistical(path, data):
                settings = [params[k] for k in ("n", "chunk", "placement", "window", "preset")]
                key = json.dumps([*settings, params["red"]])
                if key not in known:
                    known[key] = our_runs(params, seeds)
                report.distributions.append(
                    distribution(name, reference, known[key], reduction_ms(params))
                )
            continue
        for case in data["cases"]:
            reason = unable(case["params"])
            if reason is not None:
                report.left_out[reason] = report.left_out.get(reason, 0) + 1
                continue
            name = part(gate, case)
            report.gates.setdefault(name, Gate(name)).cases.append(
                compare(case, data["topologies"][case["topology"]])
            )
    return report


VERDICT = {True: "kept", False: "MISSED", None: "too few runs to judge"}


def show(report: Report, cases: bool) -> None:
    print(f"{'gate':<13} {'exact':>9} {'in limit':>9} {'flows exact':>13} {'mean':>9} {'worst':>9}")
    for gate in report.gates.values():
        row = gate.row()
        exact, within = (f"{row[k]}/{row['cases']}" for k in ("exact_cases", "cases_in_limit"))
        flows = f"{row['exact_flows']}/{row['flows']}"
        print(
            f"{gate.name:<13} {exact:>9} {within:>9} {flows:>13} {gate.mean:>9.3%} "
            f"{gate.worst:>9.3%}  limit {gate.limit:.1%} {'kept' if gate.kept else 'MISSED'}"
        )
        for c in gate.cases if cases else ():
            print(f"    {c.name:<45} {c.equal}/{c.flows} {c.deviation:+.4%}")
    for d in report.distributions:
        fct = ""
        if d["fct_ks"] is not None:
            fct = f"; FCT D {d['fct_ks']:.3f} p {d['fct_p']:.3f} (floor {d['fct_ks_floor']:.3f})"
        print(
            f"v  {d['case']}: CCT min/median/max "
            f"{'/'.join(f'{x:.1f}' for x in d['ours_ms'])} ms, reference "
            f"{'/'.join(f'{x:.1f}' for x in d['reference_ms'])} ms; median "
            f"{d['median_deviation']:+.2%} (standard error {d['median_error']:.2%}); CCT D "
            f"{d['cct_ks']:.3f} p {d['cct_p']:.3f}{fct}; {VERDICT[d['kept']]}"
        )
    for reason, count in report.left_out.items():
        print(f"left out: {count} cases ({reason})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reference", type=Path, nargs="+", required=True, metavar="DIR")
    parser.add_argument("--gate", default=",".join(GATES), help="which ones, with commas")
    parser.add_argument("--seeds", type=int, default=100, help="own runs of gate v")
    parser.add_argument("--cases", action="store_true", help="print every case")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    wanted = set(args.gate.split(","))
    if not wanted <= set(GATES):
        parser.error(f"--gate {args.gate}: known are {', '.join(GATES)}")
    if args.seeds < 10:
        parser.error("--seeds: at least 10")
    report = validate(args.reference, wanted, args.seeds, say=sys.stderr.isatty())
    if not report.gates and not report.distributions:
        print("--reference: no file of these gates that can be compared", file=sys.stderr)
        sys.exit(2)
    if args.json:
        print(
            json.dumps(
                {
                    "versions": core.version(),
                    "machine": f"{platform.machine()}, Python {platform.python_version()}",
                    "gates": [g.row() for g in report.gates.values()],
                    "cases": [
                        {"case": c.name, "exact": c.exact, "deviation": c.deviation}
                        for g in report.gates.values()
                        for c in g.cases
                    ],
                    "distributions": report.distributions,
                    "left_out": report.left_out,
                    "kept": report.kept,
                }
            )
        )
    else:
        show(report, args.cases)
    sys.exit(0 if report.kept else 1)


if __name__ == "__main__":
    main()
