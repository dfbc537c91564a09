"""Steps that let a secret slip, in every way that they have."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import subprocess
import sys
import termios
import threading
import time
from typing import Any
from urllib.parse import quote


def told(spark: Any, ctx: Any, key: str, password: str) -> None:
    """Log and print them in all ways, and fail with them."""
    print(key)
    for line in key.splitlines():
        print(line)
        ctx.log.info("one line: %s", line)
    print(f"{password[:4]}", end="", flush=True)
    print(password[4:])
    for text in (
        repr(password),
        json.dumps({"password": password}),
        quote(password, safe=""),
        repr(key),
    ):
        ctx.log.warning("in another form: %s", text)
        print(text, file=sys.stderr)
    logging.getLogger(password).warning("a logger of this name")
    raise RuntimeError("x" * 970 + password + "y" * 2000)


def past_python(spark: Any, ctx: Any, password: str) -> None:
    """Write to the descriptors themselves: this process, a child, a grandchild, and a C library."""
    os.write(1, f"written: {password}\n".encode())
    os.write(2, f"{password[:3]}".encode())
    while fcntl.ioctl(2, termios.FIONREAD, bytes(4)) != bytes(
        4
    ):  # the pipe still has the first part
        time.sleep(0.001)
    os.write(2, f"{password[3:]} written in two\n".encode())
    subprocess.run(["sh", "-c", 'printf "child: %s\n" "$0"', password], check=True)
    subprocess.run(
        ["sh", "-c", 'sh -c "cat >&2"'], input=f"grandchild: {password}\n".encode(), check=True
    )
    ctypes.CDLL(None).printf(b"library: %s\n", password.encode())
    ctypes.CDLL(None).puts(
        b"x" * 300_000
    )  # more than a pipe holds, and CDLL lets the GIL go; PyDLL does not
    ctypes.PyDLL(None).puts(b"y" * 300_000)
    print("printed after that")


def plain(spark: Any, ctx: Any) -> None:
    """Print as it is done without secrets."""
    os.write(1, b"plain: hunter2/'2\n")


def thread_left(spark: Any, ctx: Any, password: str) -> None:
    """A thread that goes on until the runner has seen it."""
    from unstuck.tasks.runner.runner import this_runner

    runner = this_runner()

    def go_on() -> None:
        while not runner.replaced:
            time.sleep(0.01)

    threading.Thread(target=go_on, name=password).start()


def column(spark: Any, ctx: Any, password: str) -> Any:
    import pyarrow as pa

    return pa.table({password: [1]})


def part(spark: Any, ctx: Any, password: str) -> Any:
    import pyarrow as pa

    return pa.table({f"{password}s": [1]})


def result(spark: Any, ctx: Any, kind: str, password: str) -> None:
    made = {"text": password, "key": {password: 1}, "url": f"jdbc://{quote(password, safe='')}@h"}
    ctx.result("r", made.get(kind, [1, {"a": [f"x {password} y"]}]))


def nested_column(spark: Any, ctx: Any, password: str) -> Any:
    import pyarrow as pa

    return pa.table({"outer": [{password: 1}]})


def named(spark: Any, ctx: Any, password: str) -> None:
    import pyarrow as pa

    ctx.output(password).write(pa.table({"n": [1]}))


def values(spark: Any, ctx: Any, password: str) -> Any:
    import pyarrow as pa

    return pa.table({"who": ["ann", f"bob {password}"]})


def lengths(spark: Any, ctx: Any, who: str, password: str = "") -> None:
    ctx.result("who", len(who))
    ctx.result("password", len(password))


def gives_references(spark: Any, ctx: Any) -> Any:
    import pyarrow as pa

    ctx.result("who", "${secret:PW}")
    return pa.table({"who": ["ann", "${secret:PW}", "${secret:NOT_SET}"]})


def left_child(spark: Any, ctx: Any, password: str) -> None:
    """A child that lives on and holds the streams."""
    subprocess.Popen(["sleep", "600"])
    ctx.result("pid", os.getpid())


def configured(spark: Any, ctx: Any, debug: str, stage: str) -> Any:
    """Data that hold the words that it is configured with."""
    import pandas as pd

    print("it is", debug, "that this is", stage)
    ctx.result("changed", "true")
    ctx.result(stage, [f"{stage}_new", {debug: True}])
    return pd.DataFrame({"true": ["production", "long"], "id": [1, 2]})
