"""bench/softswitch_pps.py: what it prints, and how scaling is worked out. Asserts no speed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "bench" / "softswitch_pps.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("softswitch_pps", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The processes of the scaling run import it by name.
    monkeypatch.setitem(sys.modules, "softswitch_pps", module)
    monkeypatch.syspath_prepend(str(PATH.parent))
    spec.loader.exec_module(module)
    return module


def test_json_holds_speed_scaling_load_and_why_there_is_no_bmv2(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_bmv2", lambda: None)
    assert bench.main(["--packets", "800", "--repeats", "1", "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "simple_switch is not on PATH" in report["bmv2"]["skipped"]
    assert len(report["load"]) == 2
    (one,) = report["scaling"]
    assert one["processes"] == len(one["cores"]) == 1
    assert one["pps_median"] > 0
    assert 0 < one["cpu_share_min"] <= 1.1


FAKE_SWITCH = """#!{python}
import pathlib, signal, sys, time
if "--help" in sys.argv:
    print("--thrift-port arg")
    sys.exit()
assert int(sys.argv[sys.argv.index("--thrift-port") + 1])
assert sys.argv[-3:] == ["--", "--grpc-server-addr", "127.0.0.1:0"], sys.argv
assert all(pathlib.Path(f"p{{port}}_in.pcap").exists() for port in range(1, 402))
time.sleep({late})
for port in range(1, 402):
    pathlib.Path(f"p{{port}}_out.pcap").touch()
pathlib.Path("p2_out.pcap").write_bytes(bytes(24 + {packets} * (16 + {size})))
pathlib.Path("p3_out.pcap").write_bytes(bytes(24 + 16 + {size}))
signal.pause()
"""


def test_bmv2_may_be_slow_to_start_and_serve_thrift_and_p4runtime(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for simple_switch_grpc, whose output begins later than two seconds of quiet."""
    packets = bench.frames(5, 64)
    fake = tmp_path / "simple_switch_grpc"
    fake.write_text(
        FAKE_SWITCH.format(python=sys.executable, late=2.6, packets=4, size=len(packets[0]))
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("RINGSTEP_SIMPLE_SWITCH_GRPC", str(fake))
    assert bench.find_bmv2() == str(fake)
    cpu, out = bench._bmv2_run(str(fake), packets)
    assert out == 5
    assert cpu > 0


def test_efficiency_is_against_one_process(bench: ModuleType) -> None:
    found = {
        # 1000 packets in 1 s, and the core was free half of the time.
        1: [[bench.Round(0.0, 1.0, 0.5)]],
        # Two at once: 2000 packets from the first start to the last end.
        2: [[bench.Round(5.0, 6.0, 0.5), bench.Round(5.5, 7.0, 0.75)]],
    }
    one, two = bench.scaling_report(found, 1000, [3, 4])
    assert (one["cores"], one["pps_median"], one["pps_per_cpu_second"]) == ([3], 1000, 2000)
    assert "efficiency" not in one
    assert (two["cores"], two["pps_median"], two["pps_per_cpu_second"]) == ([3, 4], 1000, 1600)
    assert (two["efficiency"], two["efficiency_per_cpu_second"]) == (0.5, 0.8)
    assert two["cpu_share_min"] == 0.5


def test_more_processes_than_cores_are_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--processes", "100000"])
    assert "the cores that may be used" in capsys.readouterr().err
