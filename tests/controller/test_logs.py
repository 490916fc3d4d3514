"""The log in both forms."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ringstep.controller.logs import configure

LOGGER = logging.getLogger("ringstep.controller.test")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave the process's logging as it was."""
    names = ("", "ringstep", "grpc")
    levels = [logging.getLogger(name).level for name in names]
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


def failing() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        LOGGER.exception("it failed", extra={"switch": "tor1"})


def test_json_is_one_object_a_line_with_the_fields_of_extra() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    LOGGER.info("job %s registered\nnow", "a", extra={"job_id": 7, "tenant": "été"})
    LOGGER.debug("not shown")
    failing()
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "info",
        "logger": "ringstep.controller.test",
        "message": "job a registered\nnow",
        "job_id": 7,
        "tenant": "été",
    }
    assert second["switch"] == "tor1"
    assert "ValueError: bad\nthing" in second["traceback"]


def test_extra_fields_do_not_hide_what_every_line_has() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    LOGGER.info("yes", extra={"level": "no", "time": object()})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["message"]) == ("info", "yes")


def test_text_is_a_line_with_fields_behind() -> None:
    stream = io.StringIO()
    configure("text", "debug", stream)
    LOGGER.debug("written", extra={"switch": "tor1", "updates": 3})
    failing()
    lines = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"\S+Z DEBUG ringstep\.controller\.test: written switch=tor1 updates=3", lines[0]
    )
    assert lines[1].endswith("ERROR ringstep.controller.test: it failed switch=tor1")
    assert "Traceback" in lines[2]


def test_libraries_are_heard_from_warnings_on_and_once() -> None:
    stream = io.StringIO()
    configure("text", "debug", io.StringIO())
    configure("text", "debug", stream)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("grpc._cython").warning("chatter")
    logging.getLogger("some.library").warning("careful")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["careful"]


def test_grpc_is_told_to_be_quiet_before_it_is_imported() -> None:
    program = (
        "import os, sys, ringstep.controller;"
        "print(os.environ['GRPC_VERBOSITY'], 'grpc' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ERROR", "False"]
