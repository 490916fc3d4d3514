"""What the library assumes of rdma-core, against rdma-core itself where it is installed."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import SOURCES, BuiltTagger

ABI = Path(__file__).with_name("abi.c")


def test_structures_and_prototypes_are_those_of_the_headers() -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("needs a C compiler; `apt-get install gcc libc6-dev`")
    # RINGSTEP_RDMA_INCLUDE: where headers that are not installed were unpacked.
    where = os.environ.get("RINGSTEP_RDMA_INCLUDE", "/usr/include")
    if not (Path(where) / "infiniband" / "mlx5dv.h").exists():
        pytest.skip("needs rdma-core's headers; `apt-get install libibverbs-dev`")
    subprocess.run(
        [compiler, "-std=gnu17", "-fsyntax-only", "-Werror", "-I", where,
         "-I", str(SOURCES / "tagger" / "src"), str(ABI)],
        check=True,
    )  # fmt: skip


def test_the_real_libraries_are_found_complete(built: BuiltTagger) -> None:
    """In a process of its own: rdma-core reads its configuration when it is loaded."""
    try:
        ctypes.CDLL("libmlx5.so.1")
    except OSError:
        pytest.skip("needs rdma-core; `apt-get install libibverbs1 ibverbs-providers`")
    done = subprocess.run(
        [sys.executable, "-c",
         "from ringstep.hostlib.tagger import probe; print(int(probe().flags & 7))"],
        env={**os.environ, "RINGSTEP_TAG_LIBRARY": str(built.library)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "7\n"
