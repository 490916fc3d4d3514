"""Makes the helpers beside these tests and the reader of the golden vectors importable."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "vectors"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
