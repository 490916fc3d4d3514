"""The whole engine with the real plugin under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import BuildError, BuiltEngine, build, build_engine
from ringstep.hostlib.shm import Decision, DecisionTable, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def instrumented(engine: BuiltEngine) -> BuiltEngine:
    try:
        return build_engine(sanitize="address;undefined")
    except BuildError as error:
        if "cannot find" in str(error):
            pytest.skip("needs the compiler's sanitizer libraries; gcc brings them")
        raise


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_groups_fences_and_telemetry(
    instrumented: BuiltEngine, tmp_path: Path, collective: str
) -> None:
    root = f"127.0.0.1:{free_port()}"
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(12, 64), Decision(Algo.TREE, Proto.LL, 3, 8192))
    with ShmFile.create(default_path("job", tmp_path)) as file:
        file.write_static(table)
        plugin = str(build().plugin)
        env = {**os.environ, "NCCL_TUNER_PLUGIN": plugin, "NCCL_PROFILER_PLUGIN": plugin,
               "RINGSTEP_SHM_DIR": str(tmp_path), "RINGSTEP_JOB": "job"}  # fmt: skip
        options = ["--sizes", "12,3000,70000", "-t", "all", "-o", "all", "-n", "2", "-w", "0",
                   "--comms", "2", "--group", "3", "--fence", "1"]  # fmt: skip
        ranks = [
            subprocess.Popen(
                [str(instrumented.perf), collective, "--rank", str(rank), "--ranks", "3", "--root",
                 root, *options],
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(3)
        ]  # fmt: skip
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert said == ["", "", ""]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
