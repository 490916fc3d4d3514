"""The committed code of the API is what the .proto files give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "controller" / "proto" / "generate.py"


def test_generated_code_is_up_to_date() -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools: pip install 'ringstep[test]'")
    spec = importlib.util.spec_from_file_location("ringstep_generate_proto", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    stale = [
        name
        for name, text in module.generate().items()
        if (ROOT / "controller" / "v1" / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python controller/proto/generate.py"
