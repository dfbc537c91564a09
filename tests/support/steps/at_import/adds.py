"""A module of steps that adds to its process when it is imported, as many libraries do."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["ADDED_AT_IMPORT"] = "1"
sys.path.append("/added/at/import")


def found(spark: Any, ctx: Any) -> None:
    ctx.result("added", [os.environ.get("ADDED_AT_IMPORT"), "/added/at/import" in sys.path])
