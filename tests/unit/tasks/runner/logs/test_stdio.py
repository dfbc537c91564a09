"""What a step prints, as it gets into the log of its attempt."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.machine import Limit
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.runner.logs import stdio as tee
from unstuck.tasks.runner.logs.attempt_log import AttemptLog
from unstuck.tasks.runner.logs.stdio import Tee
from unstuck.tasks.warehouse.files import Files


class Paper:
    """A tee with its stream, the lines that it put, and a clock that stands still until it is
    set.
    """

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.lines: list[str] = []
        self.now = 0.0
        self.secrets = Secrets({"S": "hush-hush"})
        self.tee = Tee(
            *("paper", self.stream, self.lines.append),
            secrets=self.secrets,
            clock=lambda: self.now,
        )


@pytest.fixture
def paper() -> Paper:
    return Paper()


def printed_by_attempt(folder: Path, name: str = "1-n-c") -> AttemptLog:
    return AttemptLog(Files(str(folder)), f"_staging/j/job.logs/{name}.log")


def lines_of(log: AttemptLog) -> list[str]:
    assert log.path is not None
    return log.path.read_text().splitlines()


def test_a_long_line_in_small_writes_is_logged_in_linear_time(
    tmp_path: Path,
) -> None:
    log = printed_by_attempt(tmp_path)
    limit = Limit(2.0, time.process_time)
    with contextlib.redirect_stdout(io.StringIO()), log.open():
        for n in range(50_000):
            print(f"{n:06},", end="")
    assert limit.kept, limit
    text = "".join(line.partition(": ")[2] for line in lines_of(log))
    assert text == "".join(f"{n:06}," for n in range(50_000))


def test_an_unfinished_line_is_shown_periodically_in_bounded_pieces(
    paper: Paper,
) -> None:
    for _ in range(12):
        paper.tee.write(".")
        paper.now += 1
    assert paper.lines == ["....."] * 2
    paper.tee.write("\n")
    assert paper.lines == [".....", ".....", ".."]
    paper.tee.write("x" * 2 * tee.MAX_LINE + "y\n")
    assert [len(line) for line in paper.lines[3:]] == [tee.MAX_LINE, tee.MAX_LINE, 1]
    paper.tee.write("the end")
    paper.tee.finish()
    assert paper.lines[-1] == "the end"


def test_a_line_shown_before_its_end_leaves_no_empty_line(paper: Paper) -> None:
    paper.tee.write("x" * tee.MAX_LINE)
    paper.now = 60
    paper.tee.write("\n\nnext\n")
    assert paper.lines == ["x" * tee.MAX_LINE, "", "next"]


def test_a_progress_bar_is_shown_every_few_seconds_and_at_its_end(
    paper: Paper,
) -> None:
    for percent in range(101):
        paper.tee.write(f"\r{percent}%")
        paper.now += 0.1
    paper.tee.write("\n")
    assert paper.lines[-1] == "100%"
    assert 2 <= len(paper.lines) <= 4
    assert paper.stream.getvalue().startswith("\r0%\r1%\r2%"), (
        "the worker's own stream has all of it"
    )


def test_a_self_erasing_progress_bar_leaves_no_empty_lines(paper: Paper) -> None:
    for text in ("\r10%", "\r   ", "\r", "\rdone\n"):
        paper.tee.write(text)
        paper.now += 60
    assert paper.lines == ["10%", "done"]


@pytest.mark.parametrize(
    "parts", [["one\r\ntwo\r\n"], ["one\r", "\ntwo", "\r\n"], ["one\n", "two\n"]]
)
def test_line_endings_of_other_systems_are_recognized(paper: Paper, parts: list[str]) -> None:
    for part in parts:
        paper.tee.write(part)
        paper.now += 60
    assert paper.lines == ["one", "two"]


def test_lines_of_several_threads_are_not_mixed(paper: Paper) -> None:
    paper.tee.write("begun here, ")
    other = threading.Thread(target=lambda: print("whole", file=paper.tee))
    other.start()
    other.join()
    paper.tee.write("ended here\n")
    assert paper.lines == ["whole", "begun here, ended here"]


def test_a_secret_is_masked_wherever_lines_are_cut(paper: Paper) -> None:
    paper.secrets.resolve("${secret:S}")
    paper.tee.write("x" * (tee.MAX_LINE - 3))
    paper.tee.write("hush-hush")
    paper.tee.write("x" * (tee.MAX_LINE - 3) + "hush-hush, and ")
    paper.tee.write("hush-")
    paper.tee.write("hush\n")
    paper.tee.write("hush")
    paper.now += 60
    paper.tee.write("-hush, and hu")
    assert "hush" not in "".join(paper.lines) + paper.stream.getvalue()
    paper.tee.finish()
    for text in ("".join(paper.lines), paper.stream.getvalue()):
        assert text.count("${secret:S}") == 4
        assert text.endswith("${secret:S}, and hu")


def test_text_unprintable_on_the_worker_console_is_still_logged() -> None:
    raw = io.BytesIO()
    lines: list[str] = []
    narrow = Tee("narrow", io.TextIOWrapper(raw, "ascii", write_through=True), lines.append)
    narrow.write("grüße\n")
    assert lines == ["grüße"]
    assert raw.getvalue() == b"gr\\xfc\\xdfe\n"


def test_bytes_are_decoded_with_the_requested_encoding(paper: Paper) -> None:
    for half in (b"caf\xc3", b"\xa9\n"):
        assert paper.tee.buffer.write(half) == len(half)
    paper.tee.reconfigure(encoding="latin-1")
    paper.tee.buffer.write(memoryview("café\n".encode(paper.tee.encoding)))
    assert paper.lines == ["café", "café"]
    for slip, write in (
        ("text", paper.tee.buffer.write),
        (b"bytes", paper.tee.write),
        (7, paper.tee.write),
    ):
        with pytest.raises(TypeError):
            write(slip)  # type: ignore[operator]


def test_a_stored_stream_writes_to_the_log_of_the_current_attempt(tmp_path: Path) -> None:
    first, second = printed_by_attempt(tmp_path, "1-n-c"), printed_by_attempt(tmp_path, "2-n-c")
    worker = io.StringIO()
    library = logging.getLogger("kept by a library")
    library.propagate = False
    with contextlib.redirect_stderr(worker):
        with first.open():
            kept = logging.StreamHandler(sys.stderr)
            library.addHandler(kept)
            library.warning("of the first")
        library.warning("between")
        with second.open():
            library.warning("of the second")
    library.removeHandler(kept)
    assert [line.partition(": ")[2] for line in lines_of(first)] == ["of the first"]
    assert [line.partition(": ")[2] for line in lines_of(second)] == ["of the second"]
    assert worker.getvalue() == "of the first\nbetween\nof the second\n"


def test_a_step_may_print_on_a_worker_without_standard_streams(tmp_path: Path) -> None:
    log = printed_by_attempt(tmp_path)
    with contextlib.redirect_stdout(None), log.open():
        print("heard")
    assert lines_of(log)[0].endswith("INFO step.stdout: heard")


@pytest.mark.parametrize(
    ("secret", "encoding"),
    [("pä€ssword1", "latin-1"), ("a\\b€password", "ascii"), ("a\\b\udcffpassword", "utf-8")],
)
def test_a_secret_printed_in_any_encoding_is_masked(
    paper: Paper, secret: str, encoding: str
) -> None:
    paper.secrets = Secrets({"PW": secret})
    paper.secrets.resolve("${secret:PW}")
    paper.tee = Tee("paper", paper.stream, paper.lines.append, secrets=paper.secrets)
    paper.tee.reconfigure(encoding=encoding)
    print(f"login with {secret}", file=paper.tee)
    paper.tee.finish()
    for shown in (paper.stream.getvalue(), *paper.lines):
        assert "login with" in shown
        assert "ssword" not in shown


def test_a_step_may_choose_any_encoding_and_continue_printing(paper: Paper) -> None:
    paper.tee.reconfigure(encoding="utf-16")
    for number in range(3):
        print(number, file=paper.tee)
    assert paper.lines == ["0", "1", "2"]
    assert paper.tee.line_buffering
    assert paper.tee.buffer.raw is paper.tee.buffer
    with pytest.raises(TypeError):
        paper.tee.write(b"bytes")  # type: ignore[arg-type]
