"""Runs a command with the notice as JSON on its standard input, without a shell."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Annotated, ClassVar

import psutil
from pydantic import Field

from unstuck.coordinator.notices.addresses import Allowed
from unstuck.coordinator.notices.channels.channel import (
    Message,
    NoticeChannel,
    SendFailed,
    shortened,
)
from unstuck.coordinator.notices.channels.webhook import payload
from unstuck.tasks.process.tree import Tree
from unstuck.tasks.spec.fields import Listed

_TAIL = 2000  # bytes of what it wrote that are read


class CommandTarget(NoticeChannel):
    """``command: [PROGRAM, ARGUMENT, …]``, run with the environment of the coordinator.

    The environment lacks UNSTUCK_NOTIFY. At the end of the timeout the command is killed with all
    processes that it started.
    """

    kind: ClassVar[str] = "command"
    command: Annotated[
        Listed[Annotated[str, Field(strict=True, pattern=r"^[^\x00]*$")]], Field(min_length=1)
    ]

    def send(self, message: Message, allowed: Allowed) -> str:
        environ = {name: value for name, value in os.environ.items() if name != "UNSTUCK_NOTIFY"}
        with tempfile.TemporaryFile() as output_file, tempfile.TemporaryFile() as input_file:
            input_file.write(json.dumps(payload(message)).encode())
            input_file.seek(0)
            # Files, since a pipe would be waited for until the last process that holds it has
            # ended.
            try:
                process = subprocess.Popen(
                    self.command,
                    stdin=input_file,
                    stdout=output_file,
                    stderr=output_file,
                    start_new_session=True,
                    env=environ,
                )
            except OSError as error:
                raise SendFailed(f"{self.command[0]} cannot be started: {error.strerror}") from None
            tree = Tree(psutil.Process(process.pid))
            try:
                code = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                raise SendFailed(
                    f"{self.command[0]} had not ended after {self.timeout:g}s, and was killed"
                ) from None
            finally:
                tree.kill()
                process.wait()
            output_file.seek(max(0, output_file.seek(0, os.SEEK_END) - _TAIL))
            lines = output_file.read().decode(errors="replace").strip().splitlines()
        last = shortened(lines[-1]) if lines else ""
        if code:
            ended = f"with {code}" if code > 0 else f"by signal {-code}"
            raise SendFailed(f"{self.command[0]} ended {ended}{': ' if last else ''}{last}")
        return f"ended with 0{': ' if last else ''}{last}"
