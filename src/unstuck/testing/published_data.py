"""Publishes the rows of a test like outputs of a job: staged, marked, and named in the log."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

from unstuck.coordinator.publishing.publish_outputs import publish
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.tasks.errors import OutputInvalid
from unstuck.tasks.frames.output import stage
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import Marker, write_marker

Mode = Literal["replace", "append"]


def new_token(group: str) -> Token:
    """Return the token of an attempt that belongs to no job."""
    return Token(f"test-{secrets.token_hex(6)}", group, 1, "n", "test")


def publish_frame(
    warehouse: Warehouse, name: str, frame: Any, mode: Mode, partition_by: Sequence[str]
) -> int:
    """Publish ``frame`` as the dataset ``name``. Return the version of the warehouse.

    Raises: OutputInvalid: the frame cannot be stored, or does not fit the published rows.
    """
    token, files = new_token("test"), warehouse.storage
    how: dict[str, Any] = {"mode": mode, "partition_by": list(partition_by)}
    if mode == "append":
        how["on_schema_change"] = "evolve"  # rows of a test often leave columns out
    staged = stage(files, f"{token.staging}/{name}", frame, partition_by)
    write_marker(files, token.staging, Marker(str(token), "", {name: staged}, {}, {}, time.time()))
    done = publish(
        PublishRequest(
            warehouse=files.uri(""),
            warehouse_id=warehouse.ensure_id(),
            publish_id=token.job,
            job=token.job,
            job_name="",  # the jobs of the test own what they publish
            base=warehouse.head(),
            at=time.time(),
            sources={token.group: (token.staging,)},
            published_by={token.group},
            outputs={name: OutputSpec.model_validate(how)},
        )
    )
    if done.failed:
        raise OutputInvalid(done.failed.text)
    return done.version
