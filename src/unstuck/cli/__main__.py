"""``python -m unstuck.cli`` is the command ``unstuck``."""

from unstuck.cli import main

main()
