"""The main job in a minute: compile a spec, run the file that comes out, see what to try next.

Run it with `make demo`, or `python examples/demo.py` where archc is installed. It writes into
`out/` of the folder it is run in.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STEPS = (
    ("a spec: the equations of a paper", "archc fmt kda"),
    ("the layer as one file", "archc compile kda -o out/kda_kernel.py"),
    ("the file needs torch only, and checks itself", "python out/kda_kernel.py"),
)

NEXT = """
Next:
  archc list                                  what else is bundled
  archc check kda                             what the compiler knows before any number is
  archc show kda --stage layer --as svg       the layer as a picture
  archc new mine --from kda                   start one of your own: mine.arch
  archc explain E0201                         any error, explained
"""


def run(command: str) -> None:
    """Show a command, then run it in this environment; leave with its status if it fails."""
    print(f"\n$ {command}", flush=True)
    program, *arguments = command.split()
    path = Path(sys.executable).with_name(program)
    done = subprocess.run([str(path), *arguments], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Run every step, then say what to try."""
    Path("out").mkdir(exist_ok=True)
    for title, command in STEPS:
        print(f"\n# {title}", end="")
        run(command)
    activate = Path(sys.executable).parent / "activate"
    print(f"{NEXT}\n`source {activate}` puts archc on your path.")


if __name__ == "__main__":
    main()
