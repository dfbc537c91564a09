"""Where the repository stands, and where the processes that tests start look for code."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
# As a user's own: the modules of steps, and the plugins of Celery, are found by the PYTHONPATH of
# the worker.
PYTHONPATH = os.pathsep.join(map(str, (ROOT, SUPPORT / "steps", SUPPORT / "celery_plugins")))
