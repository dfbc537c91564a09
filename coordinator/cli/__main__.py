"""``python -m coordinator.cli``: the same as ``unstuck``."""

from coordinator.cli import main

main()
