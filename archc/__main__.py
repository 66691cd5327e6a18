"""`python -m archc`, and the command `archc`: Ctrl-C is heeded before anything is imported."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """The command line."""
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    from archc.cli import main as command

    command()


if __name__ == "__main__":
    main()
