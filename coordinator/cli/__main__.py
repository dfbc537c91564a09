"""``python -m unstuck.coordinator.cli`` is the command ``unstuck``."""

from unstuck.coordinator.cli import main

main()
