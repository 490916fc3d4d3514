"""What the launcher says, on stderr alone: stdout is the command's."""

from __future__ import annotations

import sys


class LaunchError(Exception):
    """Nothing was started; the text says what is wrong and what would be right.

    Attributes:
        status: exit status: 2 for bad input, 126 and 127 as shells have them for commands.
    """

    def __init__(self, text: str, status: int = 2) -> None:
        self.status = status
        super().__init__(text)


class Say:
    """Lines for the person at the terminal; each warning once.

    ``quiet`` leaves out everything but warnings.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._said: set[str] = set()

    def note(self, text: str) -> None:
        """Say how things go."""
        if not self._quiet:
            self.line(text)

    def warn(self, text: str) -> None:
        """Say what is missing and what that means."""
        if text not in self._said:
            self._said.add(text)
            self.line(f"warning: {text}")

    def line(self, text: str) -> None:
        """Write a line, whatever became of stderr: training does not end because nobody reads."""
        try:
            sys.stderr.write(f"ringstep: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return
