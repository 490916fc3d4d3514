"""What may be shown of values that hold secrets."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
# Up to the last @: a password may hold one, and showing too little does no harm.
_USER_PASSWORD = re.compile(r"(?<=://)([^/@:]*):.*@")
_PASSWORD_OPTION = re.compile(r"(?i)([?&](?:password|sslpassword|passfile)=)[^&#]*")


def safe_url(url: str) -> str:
    """Return a database URL without its password; the rest tells which database is meant."""
    shown = _USER_PASSWORD.sub(rf"\1:{HIDDEN}@", url)
    return _PASSWORD_OPTION.sub(rf"\1{HIDDEN}", shown)
