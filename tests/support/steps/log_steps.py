"""Steps that do with logging and with their streams what code does that was written to run
alone.
"""

from __future__ import annotations

import io
import logging
import logging.config
import subprocess
import sys
import threading
from typing import Any

log = logging.getLogger("company.pipeline")


def basic(spark: Any, ctx: Any) -> None:
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="console %(message)s", force=True
    )
    _speak(ctx)


def to_a_file(spark: Any, ctx: Any) -> None:
    """Nothing of it is printed: what the attempt's log has, it heard itself."""
    logging.basicConfig(filename=ctx.scratch / "own.log", level=logging.INFO, force=True)
    _speak(ctx)


def config(spark: Any, ctx: Any) -> None:
    """As most ``setup_logging`` functions do it: all loggers there are get disabled, but for those
    it names.
    """
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"plain": {"format": "console %(message)s"}},
            "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
            "loggers": {"company": {"level": "INFO"}},
            "root": {"level": "INFO", "handlers": ["console"]},
        }
    )
    _speak(ctx)


def one_more(spark: Any, ctx: Any) -> None:
    logging.getLogger().addHandler(logging.StreamHandler())
    log.addHandler(logging.StreamHandler(sys.stdout))
    try:
        _speak(ctx)
    finally:
        log.handlers.clear()


def raises(spark: Any, ctx: Any) -> None:
    config(spark, ctx)
    raise ValueError("the error of the step itself")


def silent(spark: Any, ctx: Any) -> None:
    logging.disable(logging.CRITICAL)
    raise ValueError("the error of the step itself")


class Rude(logging.Handler):
    """Raises, where a handler should not."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no more lines")


def rude(spark: Any, ctx: Any) -> None:
    logging.getLogger().addHandler(Rude())
    raise ValueError("the error of the step itself")


def rude_from_now_on(spark: Any, ctx: Any) -> None:
    logging.getLogger().addHandler(Rude())


def looks(spark: Any, ctx: Any) -> None:
    """How logging stands, as a step finds it."""
    root = logging.getLogger()
    ctx.result("handlers", [repr(handler) for handler in root.handlers])
    ctx.result("level", root.level)
    ctx.result(
        "disabled",
        sorted(name for name in root.manager.loggerDict if logging.getLogger(name).disabled),
    )
    ctx.result("off", root.manager.disable)


def streams(spark: Any, ctx: Any) -> None:
    """What code uses of its streams, beside ``write``."""
    out = sys.stdout
    out.buffer.write("grüße, as bytes\n".encode(out.encoding, out.errors))
    out.buffer.write(b"caf\xe9 in another encoding\n")
    out.buffer.writelines([b"two ", b"parts\n"])
    out.writelines(["lines ", "of text\n"])
    out.reconfigure(line_buffering=True)
    wrapped = io.TextIOWrapper(out.buffer, encoding="utf-8", line_buffering=True)
    print("through a wrapper", file=wrapped)
    wrapped.close()
    out.close()
    print("printed after that, in a thread too")
    thread = threading.Thread(target=print, args=("said by a thread",))
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", "print(1)"], stdout=sys.stdout, check=True)
    ctx.result(
        "facts", [out.isatty(), out.writable(), out.readable(), out.closed, out.mode, out.name]
    )
    ctx.result("encoding", out.encoding)


def _speak(ctx: Any) -> None:
    ctx.log.info("said by the step")
    log.info("said by a library")
    print("printed by the step")
