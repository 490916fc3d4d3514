"""A wall clock that can be stepped under one process, and under no other.

CLOCK_REALTIME belongs to the whole machine, also within a time namespace. So a small library,
compiled here and loaded before libc, adds an offset to it that is read from a mapped file. Clocks
that only go on are left alone, as a step of the real clock leaves them.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from faultrig.processes import RigError

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_s;

/* Not only at the start: a process that is forked may be given its clock afterwards. */
static void map_offset(void) {
  const char *path = getenv("RINGSTEP_TEST_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) offset_s = page;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    if (!offset_s) map_offset();
    if (offset_s) now->tv_sec += *offset_s;
  }
  return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &exact);
  if (result == 0 && now) {
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
  }
  return result;
}

time_t time(time_t *out) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return (time_t)-1;
  if (out) *out = exact.tv_sec;
  return exact.tv_sec;
}
"""


def why_not() -> str:
    """Return why no clock can be stepped here, and what would help; empty where one can."""
    if not hasattr(os, "posix_spawn") or not Path("/proc/self/maps").exists():
        return "clocks are stepped by a preloaded library, which needs Linux"
    if shutil.which("cc") is None:
        return "no C compiler (cc) to compile the library that steps a clock"
    return ""


@functools.cache
def _library() -> Path:
    """Compile the library, once for all clocks of this process.

    Raises:
        RigError: it cannot be compiled.
    """
    folder = Path(tempfile.mkdtemp(prefix="ringstep-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, library = folder / "stepclock.c", folder / "libstepclock.so"
    source.write_text(_SOURCE)
    done = subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RigError(f"cc: {done.stderr}")
    return library


class SteppedClock:
    """``env`` gives a process this clock; :meth:`step` moves it while the process runs.

    Raises:
        RigError: the library cannot be compiled.
    """

    def __init__(self, folder: Path, name: str) -> None:
        library = _library()
        path = folder / f"{name}.clock"
        path.write_bytes(struct.pack("q", 0).ljust(mmap.PAGESIZE, b"\0"))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        preload = [str(library), *os.environ.get("LD_PRELOAD", "").split()]
        self.env = {"LD_PRELOAD": " ".join(preload), "RINGSTEP_TEST_CLOCK": str(path)}

    def step(self, seconds: int) -> None:
        """Move the clock by ``seconds`` from where it is; negative: back."""
        (offset,) = struct.unpack_from("q", self._page)
        struct.pack_into("q", self._page, 0, offset + seconds)

    def close(self) -> None:
        """Give the mapped file up; processes keep theirs."""
        self._page.close()
