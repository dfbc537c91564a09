"""``python -m unstuck.coordinator.cli``: the same as ``unstuck``."""

from unstuck.coordinator.cli import main

main()
