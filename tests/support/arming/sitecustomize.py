"""Arms every Python process that has this folder in its PYTHONPATH, when it starts
(docs/internals/failpoints.md).
"""

import os

if folder := os.environ.get("UNSTUCK_ARM"):
    from tests.support.failpoints import arm_this_process

    arm_this_process(folder)
