"""Engine and plugin together under the sanitizers, while tables change under them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import BuildError, build, build_engine, missing_tools
from ringstep.hostlib.shm import Decision, DecisionTable, ShmError, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

pytestmark = pytest.mark.slow

TABLES = [
    Decision(Algo.RING, Proto.SIMPLE, 2), Decision(Algo.TREE, Proto.LL, 1),
    Decision(Algo.RING, Proto.LL, 4, 64 << 10), Decision(Algo.TREE, Proto.SIMPLE, 8),
]  # fmt: skip


def table_of(decision: Decision) -> DecisionTable:
    made = DecisionTable()
    made.set(Collective.ALL_REDUCE, range(64), decision)
    return made


@pytest.mark.parametrize("kind", ["address;undefined", "thread"])
def test_collectives_while_tables_change(tmp_path: Path, kind: str) -> None:
    reason = missing_tools("C++") or missing_tools()
    if reason is not None:
        pytest.skip(reason)
    try:
        plugin, perf = build(sanitize=kind).plugin, build_engine(sanitize=kind).perf
    except BuildError as error:
        if "cannot find" in str(error) or "unrecognized" in str(error):
            pytest.skip(f"needs the compiler's sanitizer libraries ({kind}); gcc brings them")
        raise
    environment = {
        **os.environ,
        "RINGSTEP_SHM_DIR": str(tmp_path),
        "NCCL_TUNER_PLUGIN": str(plugin),
        "NCCL_PROFILER_PLUGIN": str(plugin),
        "ASAN_OPTIONS": "detect_leaks=1:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=98",
    }
    command = [str(perf), "all_reduce", "-N", "3", "--sizes", "1K,64K,1M", "--duration", "1",
               "-n", "5", "--json", "--comms", "2", "--group", "2"]  # fmt: skip
    epochs = 0
    with ShmFile.create(default_path(directory=tmp_path)) as shm:
        shm.write_static(table_of(TABLES[-1]))
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            for decision in itertools.cycle(TABLES):
                for view in shm.comms():
                    with contextlib.suppress(ShmError):
                        shm.announce(view.index, shm.last_epoch + 1, table_of(decision))
                try:
                    process.wait(0.05)
                    break
                except subprocess.TimeoutExpired:
                    pass
                for view in shm.comms():
                    with contextlib.suppress(ShmError):
                        epochs += shm.commit(view.index, view.announced).name == "DONE"
            out, err = process.communicate()
    if "unexpected memory mapping" in err:
        pytest.skip("ThreadSanitizer does not know this kernel's memory map; "
                    "`sysctl vm.mmap_rnd_bits=28` or a newer compiler")  # fmt: skip
    assert process.returncode == 0, err[-4000:]
    assert json.loads(out)["wrong"] == 0
    assert epochs > 0
    assert "decided" in out
