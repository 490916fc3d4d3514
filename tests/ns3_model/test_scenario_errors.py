"""What a person reads who wrote something that no scenario holds: file, line, key, remedy."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, ScenarioError, Sweep, SweepError, prepare

HEAD = """[fabric]
kind = "leaf_spine"
leaves = 2
spines = 2
hosts_per_leaf = 4
rate = "10G"
"""
LINKS = """[fabric]
kind = "links"
hosts = ["a", "b", "c"]
switches = ["s"]
[[fabric.link]]
a = "a"
b = "s"
rate = "10G"
[[fabric.link]]
a = "b"
b = "s"
rate = "10G"
"""
JOB = '[[job]]\nchunk = "64KiB"\n'


def problems(text: str, *settings: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        prepare(Scenario.parse(text, "ring.toml", settings=settings))
    return list(caught.value.problems)


GOLDEN = {
    "unknown key": (
        HEAD + JOB + "[switch]\nbufer = 3\n",
        "ring.toml:10: switch.bufer: unknown key; did you mean 'buffer'? known keys here: buffer, "
        "pfc, red, lb, plan, flowlet_gap, load_horizon, ecmp_hash, marking, marked, mark_gap, "
        "scheduler",
    ),
    "missing rate": (
        HEAD.replace('rate = "10G"\n', "") + JOB,
        "ring.toml:1: fabric: 'rate' is missing; write for example rate = \"10G\"",
    ),
    "missing rate of a link": (
        LINKS.replace('b = "s"\nrate = "10G"\n', 'b = "s"\n', 1) + JOB,
        "ring.toml:5: fabric.link[1]: 'rate' is missing; write for example rate = \"10G\"",
    ),
    "no fabric": (
        JOB,
        "ring.toml: 'fabric' is missing; write for example [fabric] with kind = \"leaf_spine\"",
    ),
    "unknown kind": (
        HEAD.replace('"leaf_spine"', '"leafspine"') + JOB,
        "ring.toml:2: fabric.kind: 'leafspine' is not one of these; did you mean 'leaf_spine'? "
        "write leaf_spine, multi_pod, links, file",
    ),
    "not TOML": (HEAD + "[[job\n", "ring.toml:7:6: not TOML: Expected ']]' at the "
        "end of an array declaration"),
    "nothing to send": (
        HEAD,
        "ring.toml: neither [[job]] nor [[background]]: nothing would be sent; add a [[job]]",
    ),
    "size 0": (
        HEAD + '[[job]]\nsize = "0B"\n',
        "ring.toml:8: job[1].size: '0B' is no size; write one above zero, such as \"8MiB\"",
    ),
    "no size": (
        HEAD + "[[job]]\n",
        'ring.toml:7: job[1]: how much to send is missing; write for example chunk = "8MiB"',
    ),
    "ring over one node": (
        HEAD + JOB + "ranks = 1\n",
        "ring.toml:9: job[1].ranks: a ring over one node sends nothing; take two or more ranks",
    ),
    "listed ring over one node": (
        HEAD + JOB + "rings = [[0, 1], [2]]\n",
        "ring.toml:9: job[1].rings: ring 2 has 1 rank; a ring over one node sends nothing: name "
        "two or more",
    ),
    "more ranks than hosts": (
        HEAD + JOB + "ranks = 9\n",
        "ring.toml:9: job[1].ranks: 9 ranks, but 8 hosts; a host holds one rank of a job: take "
        "ranks = 8 or a larger fabric",
    ),
    "unknown host": (
        HEAD + JOB + 'placement = "explicit"\nhosts = ["h0", "h9"]\n',
        "ring.toml:10: job[1].hosts: 'h9' is no host of the fabric; known: h0, h1, h2, "
        "h3, h4, h5, h6, h7 ... (12 in all)",
    ),
    "host without a link": (
        LINKS + JOB,
        'ring.toml:3: fabric.hosts: \'c\' has no link; add [[fabric.link]] with a = "c", or take '
        "it out",
    ),
    "unreachable host": (
        LINKS.replace('"s"]', '"s", "t"]')
        + '[[fabric.link]]\na = "c"\nb = "t"\nrate = "10G"\n'
        + JOB,
        "ring.toml:17: job[1].hosts: no path joins 'a' and 'c'; add a link between their switches, "
        "or place the job on one side",
    ),
    "link to nowhere": (
        LINKS + '[[fabric.link]]\na = "c"\nb = "x"\nrate = "10G"\n' + JOB,
        "ring.toml:15: fabric.link[3].b: 'x' is neither a host nor a switch; known: a, b, c, s",
    ),
    "host with two cables": (
        LINKS + '[[fabric.link]]\na = "c"\nb = "a"\nrate = "10G"\n' + JOB,
        "ring.toml:15: fabric.link[3].b: host 'a' gets more than one cable, link[1] too; a host "
        "has one NIC: put a switch in between, or make each NIC a host",
    ),
    "a name twice": (
        LINKS.replace(', "c"]', "]").replace('["s"]', '["s", "a"]') + JOB,
        "ring.toml:4: fabric.switches: 'a' stands twice; every node needs a name of its own",
    ),
    "contradictory oversubscription": (
        HEAD.replace("leaf_spine", "multi_pod")
        + 'pods = 2\noversubscription = "1:2"\ncores_per_spine = 1\ncore_rate = "10G"\n'
        + JOB,
        "ring.toml:8: fabric.oversubscription: does not agree with cores_per_spine = 1 and "
        'core_rate = "10G"; leave one of the three out',
    ),
    "rate without RED thresholds": (
        HEAD + JOB + '[switch.red]\nprofile = "hpcc_config"\n',
        "ring.toml:9: switch.red: profile 'hpcc_config' has no thresholds for 10G, the rate of "
        'h0-tor0; add [[switch.red.rate]] with rate = "10G", k_min, k_max and p_max, or take '
        "another profile",
    ),
    "more steps than the tag": (
        HEAD + JOB + 'passes = 2000\n[switch]\nmarking = "marker"\n',
        "ring.toml:7: job[1]: counts 28000 steps; the tag of 14 bits holds 16384: take fewer "
        'passes or iterations, or marker.step_wrap = "allow", which is safe while steps in flight '
        "differ by less than 8192",
    ),
    "more steps than the port": (
        HEAD + JOB + "passes = 4000\n[transport]\nsport_base = 10000\n",
        "ring.toml:7: job[1]: counts 56000 steps; with transport.sport_base = 10000 the source "
        "port holds 55536: take fewer passes or iterations, or sport_base = 0xC000, which wraps",
    ),
    "dependency cycle": (
        HEAD
        + '[[job]]\n[[job.op]]\nname = "a"\nkind = "all_reduce"\nsize = 8\nafter = ["b"]\n'
        + '[[job.op]]\nname = "b"\nkind = "compute"\ntime = "1ms"\nafter = ["a"]\n',
        "ring.toml:12: job[1].op[1].after: the operations wait for one another: a -> b -> a; take "
        "one of them out of 'after'",
    ),
    "wrong algorithm": (
        HEAD + '[[job]]\ncollective = "all_gather"\nalgorithm = "halving_doubling"\nsize = 8\n',
        "ring.toml:9: job[1].algorithm: 'halving_doubling' does not do all_gather; write ring",
    ),
    "2D ring that does not fit": (
        HEAD + '[[job]]\nalgorithm = "ring_2d"\ndims = [3, 2]\nsize = 80\n',
        "ring.toml:9: job[1].dims: 3 x 2 ranks, but the job has 8; the product must be that, and "
        "each at least 2",
    ),
    "straggler that is not there": (
        HEAD + JOB + "[[job.straggler]]\nrank = 8\n",
        "ring.toml:10: job[1].straggler[1].rank: 8 is not in the job; its ranks are 0..7",
    ),
    "unknown workload": (
        HEAD + '[[job]]\n[job.workload]\nsource = "resnet5"\n',
        "ring.toml:8: job[1].workload: source 'resnet5' is not known; did you mean 'resnet50'?",
    ),
    "an option that is a list": (
        HEAD + '[[job]]\n[job.workload]\nsource = "chakra:x"\noptions = {dims = [4, 2]}\n',
        "ring.toml:10: job[1].workload.options: dims = [4, 2] is not plain; write a number, text, "
        "true or false",
    ),
    "unknown link of an event": (
        HEAD + JOB + '[[event]]\nat = "1ms"\nlink = "tor0-spin1"\naction = "fail"\n',
        "ring.toml:11: event[1].link: 'tor0-spin1' is no link; did you mean 'tor0-spine1'? known: "
        "h0-tor0, h1-tor0, h2-tor0, h3-tor0, h4-tor1, h5-tor1, h6-tor1, h7-tor1 ... (24 in all)",
    ),
    "degrade without a rate": (
        HEAD + JOB + '[[event]]\nat = "1ms"\nlink = "tor0-spine1"\naction = "degrade"\n',
        "ring.toml:9: event[1]: 'rate' is missing; write for example rate = \"1G\"",
    ),
    "empty background": (
        HEAD + '[[background]]\nkind = "poisson"\nload = 0.1\nstart = "2ms"\nstop = "1ms"\n',
        "ring.toml:11: background[1].stop: is not after 'start'; nothing would be sent",
    ),
    "unknown preset": (
        'extends = "symfony"\n' + JOB,
        "ring.toml:1: extends: 'symfony' is no preset; known: astra_ns3, nccl, symphony; a file "
        "ends in .toml",
    ),
    "a pool that is no power of two": (
        HEAD + JOB + 'sender = "qp_pool"\npool = 12\n[switch]\nmarking = "marker"\n',
        "ring.toml:10: job[1].pool: 12 QPs: the port carries the step modulo the pool, and the "
        "marker tells steps apart by whole bits, at least 3; take 8, 16, 32 ...",
    ),
    "rate without a unit": (
        HEAD.replace('"10G"', "10") + JOB,
        'ring.toml:6: fabric.rate: 10 is no rate of a link; write one from "1M" to "10000G", such '
        'as "10G" (a bare number counts bit/s)',
    ),
    "a link that loses everything": (
        HEAD + "loss = 1\n" + JOB,
        "ring.toml:7: fabric.loss: 1 loses everything; write a number below 1, such as 0.0001",
    ),
    "packets that no NIC sends": (
        HEAD + JOB + '[transport]\nmtu = "1MiB"\n',
        "ring.toml:10: transport.mtu: '1MiB' is no MTU; write a size from 64 to 65000, such as "
        "1000",
    ),
    "window in fractions": (
        HEAD + JOB + '[marker]\nt_win = "1500ns"\n[switch]\nmarking = "marker"\n',
        'ring.toml:10: marker.t_win: counts whole microseconds; write for example "100us"',
    ),
    "gap in fractions": (
        HEAD + JOB + '[switch]\nmark_gap = "1500ns"\n',
        "ring.toml:10: switch.mark_gap: '1500ns' is no gap; write whole microseconds up to "
        '65535us, "off" or "auto"',
    ),
    "gap without RED": (
        HEAD + JOB + '[switch]\nmark_gap = "20us"\nred = { enabled = false }\n',
        "ring.toml:10: switch.mark_gap: needs RED, which tells when a queue is too deep for it, "
        "and RED is off; take it out",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), GOLDEN.values(), ids=GOLDEN)
def test_a_message_names_file_line_key_and_remedy(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    found = problems(HEAD + JOB + "ranks = 0\n[cc]\npreset = 3\n[output]\nsample = true\n")
    assert [line.split(": ")[1] for line in found] == ["job[1].ranks", "cc.preset", "output.sample"]


def test_a_key_set_on_the_command_line_is_named_as_that() -> None:
    assert problems(HEAD + JOB, "switch.lb=planed") == [
        "--set switch.lb=\"planed\": switch.lb: 'planed' is not one of these; did you mean "
        "'planned'? write ecmp, planned, flowlet, spray, least_loaded"
    ]


def test_a_table_that_only_the_command_line_names_is_named_as_that() -> None:
    (found,) = problems(HEAD + JOB, "swich.lb=planned")
    assert found.startswith(
        "--set swich.lb=\"planned\": swich: unknown key; did you mean 'switch'? known keys here"
    )


def test_a_sweep_is_told_from_a_scenario(tmp_path) -> None:
    (tmp_path / "s.toml").write_text('scenario = "r.toml"\n[[axis]]\nkey = "a"\nvalues = [1]\n')
    (tmp_path / "r.toml").write_text(HEAD + JOB)
    with pytest.raises(
        ScenarioError, match=r"is a sweep; run it with: ringstep sim sweep .*s\.toml"
    ):
        Scenario.load(tmp_path / "s.toml")
    with pytest.raises(SweepError, match=r"is a scenario; run it with: ringstep sim run .*r\.toml"):
        Sweep.load(tmp_path / "r.toml")


def test_a_setting_that_leads_nowhere_is_refused() -> None:
    assert problems(HEAD + JOB, "job[3].chunk=1") == ["--set job[3].chunk: job has 1, no 3"]
    assert problems(HEAD + JOB, "chunk") == [
        "--set chunk: write key=value, such as cc.preset=connectx"
    ]


def test_a_mistake_in_a_base_file_is_named_there(tmp_path) -> None:
    (tmp_path / "base.toml").write_text(HEAD.replace('"10G"', '"fast"'))
    (tmp_path / "own.toml").write_text('extends = "base.toml"\n' + JOB)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(tmp_path / "own.toml")
    assert caught.value.problems[0].startswith(f"{tmp_path}/base.toml:6: fabric.rate: 'fast'")


def test_a_circle_of_files_is_refused(tmp_path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(ScenarioError, match="extends itself"):
        Scenario.load(tmp_path / "a.toml")


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.toml: cannot be read"):
        Scenario.load(tmp_path / "none.toml")


def test_a_topology_file_that_disagrees_with_itself_is_refused(tmp_path) -> None:
    (tmp_path / "t.toml").write_text('[[switch]]\nname = "s1"\ndevice_id = 1\nrole = "tor"\n')
    text = '[fabric]\nkind = "file"\npath = "t.toml"\n' + JOB
    with pytest.raises(ScenarioError) as caught:
        prepare(Scenario.parse(text, "ring.toml", tmp_path))
    assert "fabric.path" in caught.value.problems[0]
    assert f"{tmp_path}/t.toml:1: switch[1]: 'mac' is missing" in caught.value.problems[0]


def test_scenarios_made_in_python_are_checked_alike() -> None:
    base = Scenario.parse(HEAD + JOB)
    with pytest.raises(ScenarioError, match=r"job\[1\]\.ranks: a ring over one node"):
        prepare(base.setting({"job.ranks": 1}))
