"""How `compile.py --target tofino2` reduces the compiler's logs.

The logs here are written after the schemas that p4c ships; the compiler itself is a script that
stands for it. What the real one says about the program is no business of this file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

P4SRC = Path(__file__).resolve().parents[2] / "p4src"

STAGE: dict[str, Any] = {
    "rams": {"nRows": 8, "nColumns": 10, "srams": []},
    "tcams": {"nRows": 12, "nColumns": 2, "tcams": []},
    "meter_alus": {"nAlus": 4, "meters": []},
    "hash_bits": {"nBits": 52, "nFunctions": 8, "bits": []},
    "logical_tables": {"size": 16, "ids": []},
}


def use(what: str) -> list[dict[str, str]]:
    return [{"used_by": "t", "used_for": what}]


def logs() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return (resources, phv, power) of a program that takes two of twenty stages."""
    first, second, empty = (json.loads(json.dumps(STAGE)) for _ in range(3))
    first["rams"]["srams"] = [
        {"row": row, "column": column, "usages": use("stateful_ram")}
        for row, column in ((0, 2), (0, 3), (0, 3), (7, 9))
    ]
    first["meter_alus"]["meters"] = [
        {"row": 1, "usages": use("stateful_ram")},
        {"row": 3, "usages": use("select_ram")},
    ]
    first["logical_tables"]["ids"] = [{"id": 0, "table_name": "a"}]
    second["tcams"]["tcams"] = [
        {"row": r, "column": 0, "usages": use("ternary_match")} for r in (0, 1)
    ]
    second["hash_bits"]["bits"] = [
        {"hash_bit": bit, "hash_function": 0, "usages": []} for bit in range(14)
    ]
    second["logical_tables"]["ids"] = [{"id": 0, "table_name": "b"}, {"id": 1, "table_name": "c"}]
    resources = {"resources": {"mau": {"nStages": 20, "mau_stages": [first, second, empty]}}}
    phv = {
        "containers": [
            {"phv_number": 0, "bit_width": 32},
            {"phv_number": 0, "bit_width": 32},
            {"phv_number": 64, "bit_width": 8},
        ],
        "resources": [
            {"group_type": "mau", "bit_width": 32, "num_containers": 64},
            {"group_type": "mau", "bit_width": 8, "num_containers": 64},
            {"group_type": "deparser", "bit_width": 32, "num_containers": 64},
        ],
    }
    power = {"total_power": [{"gress": "egress", "power": 11.5, "pipe_number": 0}]}
    return resources, phv, power


def put_logs(out: Path, resources: Any, phv: Any, power: Any = None) -> None:
    (out / "pipe" / "logs").mkdir(parents=True)
    (out / "pipe" / "logs" / "resources.json").write_text(json.dumps(resources))
    (out / "pipe" / "logs" / "phv.json").write_text(json.dumps(phv))
    if power is not None:
        (out / "pipe" / "logs" / "power.json").write_text(json.dumps(power))


REDUCE = (
    "import sys, json, pathlib, tofino_report as t\n"
    "try: print(json.dumps(t.reduce(pathlib.Path(sys.argv[1]))))\n"
    "except t.ReportError as e: sys.exit(str(e))\n"
)


def reduce(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", REDUCE, str(out)]
    return subprocess.run(command, cwd=P4SRC, capture_output=True, text=True, check=False)


EXPECTED = {
    "stages": {"used": 2, "available": 20},
    "sram": {"used": 3, "available": 1600},
    "tcam": {"used": 2, "available": 480},
    "salu": {"used": 1, "available": 80},
    "phv": {"used": 40, "available": 2560},
    "hash_bits": {"used": 14, "available": 8320},
}


def test_units_are_counted_once_each(tmp_path: Path) -> None:
    resources, phv, power = logs()
    put_logs(tmp_path, resources, phv, power)
    assert json.loads(reduce(tmp_path).stdout) == EXPECTED | {"power": {"egress": 11.5}}


def test_power_is_left_out_where_the_compiler_gives_none(tmp_path: Path) -> None:
    resources, phv, _ = logs()
    put_logs(tmp_path, resources, phv)
    assert json.loads(reduce(tmp_path).stdout) == EXPECTED


@pytest.mark.parametrize(
    "key", ["rams", "tcams", "meter_alus", "hash_bits", "logical_tables"]
)  # fmt: skip
def test_a_missing_number_is_no_zero(tmp_path: Path, key: str) -> None:
    resources, phv, _ = logs()
    del resources["resources"]["mau"]["mau_stages"][1][key]
    put_logs(tmp_path, resources, phv)
    found = reduce(tmp_path)
    assert found.returncode
    assert "resources.json" in found.stderr
    assert key in found.stderr


def test_a_missing_or_broken_log_is_named(tmp_path: Path) -> None:
    assert "resources.json: the compiler did not write it" in reduce(tmp_path).stderr
    resources, phv, _ = logs()
    put_logs(tmp_path, resources, phv)
    (tmp_path / "pipe" / "logs" / "phv.json").write_text("{")
    assert "phv.json" in reduce(tmp_path).stderr


def test_a_program_without_tables_is_no_report(tmp_path: Path) -> None:
    resources, phv, _ = logs()
    for stage in resources["resources"]["mau"]["mau_stages"]:
        stage["logical_tables"]["ids"] = []
    put_logs(tmp_path, resources, phv)
    assert "no stage holds a table" in reduce(tmp_path).stderr


STAND_IN = """#!{python}
import pathlib, shutil, sys
if "--version" in sys.argv:
    print("p4c-barefoot\\nVersion 9.9.9 (SHA: 0123456789)")
    sys.exit()
if {status}:
    print("a.p4(3): warning: odd\\na.p4(7): error: too deep\\n1 error, 1 warning", file=sys.stderr)
    sys.exit({status})
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
shutil.copytree({logs!r}, out)
if "--p4runtime-files" in sys.argv:
    info = sys.argv[sys.argv.index("--p4runtime-files") + 1]
    pathlib.Path(info).write_text("# P4Info\\n")
with open({calls!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
"""


def compile_with_stand_in(
    tmp_path: Path, status: int | str = 0
) -> subprocess.CompletedProcess[str]:
    shutil.copytree(P4SRC, tmp_path / "p4src")
    put_logs(tmp_path / "logs", *logs())
    compiler = tmp_path / "p4c-barefoot"
    compiler.write_text(
        STAND_IN.format(
            python=sys.executable,
            status=status,
            logs=str(tmp_path / "logs"),
            calls=str(tmp_path / "calls"),
        )
    )
    compiler.chmod(0o755)
    command = [sys.executable, str(tmp_path / "p4src" / "compile.py"), "--target", "tofino2"]
    environment = os.environ | {
        "P4C_TOFINO": str(compiler), "P4C_TOFINO_INCLUDE": "/includes", "P4C_TOFINO_LIMIT_S": "8",
    }  # fmt: skip
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip


def test_whole_and_marker_only_are_compiled_and_recorded(tmp_path: Path) -> None:
    before = json.loads((P4SRC / "build" / "MANIFEST.json").read_text())
    found = compile_with_stand_in(tmp_path)
    assert found.returncode == 0, found.stderr
    build = tmp_path / "p4src" / "build"
    report = json.loads((build / "tofino2" / "report.json").read_text())
    assert report.keys() == {"compiler", "whole", "marker_only"}
    assert report["compiler"] == "p4c 9.9.9 (SHA: 0123456789)"
    for key in ("whole", "marker_only"):
        sizes = {"jobs": 16384, "blocks": 65536}
        assert report[key] == EXPECTED | {"power": {"egress": 11.5}} | sizes
    manifest = json.loads((build / "MANIFEST.json").read_text())
    assert manifest["v1model"] == before["v1model"]
    record = manifest["tofino2"]
    assert "ringstep_t2na.p4" in record["sources"]
    assert "include/t2na/marker_only.p4" in record["sources"]
    assert "include/v1model/marker.p4" not in record["sources"]
    assert record["artefacts"].keys() == {
        "tofino2/report.json", "tofino2/ringstep_t2na.p4info.txtpb",
    }  # fmt: skip
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert "-DRINGSTEP_MARKER_ONLY" not in calls[0]
    assert "-DRINGSTEP_MARKER_ONLY" in calls[1]
    for call in calls:
        assert "--target tofino2 --arch t2na" in call
        assert "-I /includes" in call
    check = [sys.executable, str(tmp_path / "p4src" / "compile.py"), "--check"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


def test_a_compiler_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    found = compile_with_stand_in(tmp_path, status=3)
    assert found.returncode == 1
    assert "p4c-barefoot failed with status 3" in found.stderr
    there = (tmp_path / "p4src" / "build" / "MANIFEST.json").read_text()
    assert there == (P4SRC / "build" / "MANIFEST.json").read_text()


def test_a_variant_that_fails_is_recorded_with_the_errors_and_no_numbers(tmp_path: Path) -> None:
    whole = '(0 if "-DRINGSTEP_MARKER_ONLY" in sys.argv else 3)'
    found = compile_with_stand_in(tmp_path, status=whole)
    assert found.returncode == 0, found.stderr
    build = tmp_path / "p4src" / "build"
    report = json.loads((build / "tofino2" / "report.json").read_text())
    assert report["whole"] == {"failed": ["a.p4(7): error: too deep"]}
    assert report["marker_only"]["stages"] == EXPECTED["stages"]
    manifest = json.loads((build / "MANIFEST.json").read_text())
    assert manifest["tofino2"]["artefacts"].keys() == {"tofino2/report.json"}


def test_a_variant_that_takes_too_long_is_recorded_as_that(tmp_path: Path) -> None:
    whole = '(0 if "-DRINGSTEP_MARKER_ONLY" in sys.argv else __import__("time").sleep(600))'
    found = compile_with_stand_in(tmp_path, status=whole)
    assert found.returncode == 0, found.stderr
    build = tmp_path / "p4src" / "build"
    report = json.loads((build / "tofino2" / "report.json").read_text())
    assert report["whole"] == {"failed": ["error: no result within 8 s"]}
    assert report["marker_only"]["stages"] == EXPECTED["stages"]
