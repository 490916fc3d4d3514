"""NCCL's own adapters drive the plugin: the judge of every ABI that somebody else wrote.

NCCL turns older plugin ABIs into its newest one by functions inside of libnccl.so.2, which need no
GPU. They are local symbols of a library that is not stripped; its symbol table has their addresses.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.shm import Decision, DecisionTable, Record, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag

SCRIPT = r"""
import ctypes, re, subprocess, sys
from pathlib import Path
from ringstep.hostlib.native.caller import IGNORE, Costs, Plugin, Rank, _Profiler, _Tuner
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

nccl, path, kind, version = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
library = ctypes.CDLL(nccl)
table = subprocess.run(["nm", nccl], capture_output=True, text=True, check=True).stdout
symbols = {row.split()[2]: int(row.split()[0], 16) for row in table.splitlines()
           if len(row.split()) == 3 and re.search("getNccl|ncclGetVersion$", row)}
base = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value - symbols["ncclGetVersion"]
name = f"getNccl{kind}_v{version}"
adapter = f"_Z{len(name)}{name}Pv"
get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(base + symbols[adapter])

class Adapted(Plugin):
    def tuner(self, _):
        if kind != "Tuner":
            return super().tuner(6)
        return _Tuner.from_address(get(self.library._handle))
    def profiler(self, _):
        if kind != "Profiler":
            return super().profiler(6)
        return _Profiler.from_address(get(self.library._handle))

plugin = Adapted(path)
assert plugin.tuner(6).name == b"ringstep"
rank = Rank(plugin, 77, 1, 0)
if kind == "Tuner" and version < 6:
    # An older plugin has no getChunkSize; NCCL keeps its own.
    assert not plugin.tuner(6).get_chunk_size
costs, channels = rank.get_coll_info(Collective.ALL_REDUCE, 1 << 20)
assert (costs.chosen(), channels) == ((Algo.TREE, Proto.LL128), 5), (costs.chosen(), channels)
costs = Costs(); costs[Algo.TREE, Proto.LL128] = IGNORE
costs, channels = rank.get_coll_info(Collective.ALL_REDUCE, 1 << 20, costs)
assert costs[Algo.TREE, Proto.LL128] == IGNORE and channels == 0
rank.collective()
if kind == "Profiler" and version >= 5:
    rank.api_call(captured=True)
rank.finalize()
print("good")
"""


def libnccl() -> str:
    named = os.environ.get("RINGSTEP_LIBNCCL")
    if named:
        return named
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        library = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    pytest.skip(
        "needs NCCL, no GPU; `pip install nvidia-nccl-cu12==2.32.3` (350 MB), or set "
        "RINGSTEP_LIBNCCL to a libnccl.so.2 that is not stripped"
    )


@pytest.mark.parametrize(
    ("kind", "version"),
    [*(("Tuner", v) for v in (3, 4, 5, 6)), *(("Profiler", v) for v in (4, 5, 6))],
)
def test_nccls_own_adapter_drives_the_plugin(
    built: Built, shm: ShmFile, monkeypatch: pytest.MonkeyPatch, kind: str, version: int
) -> None:
    library = libnccl()
    if shutil.which("nm") is None:
        pytest.skip("needs nm; `apt-get install binutils`")
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.TREE, Proto.LL128, 5))
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{shm.write_static(table):x}")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, library, str(built.plugin), kind, str(version)],
        capture_output=True, text=True,
    )  # fmt: skip
    if "KeyError" in done.stderr:
        pytest.skip(f"{library} has no adapter for {kind} v{version}, or is stripped")
    assert done.stdout == "good\n", done.stderr
    (record,) = [r for r in shm.rings()[0].poll() if isinstance(r, Record)]
    assert (record.func, record.algo, record.proto) == (
        Collective.ALL_REDUCE, Algo.RING, Proto.SIMPLE,
    )  # fmt: skip
    assert record.bytes == 1 << 20
    assert record.duration_ns == 4001
    assert RecordFlag.DECIDED in record.flags
