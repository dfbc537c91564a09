"""A format of files that arrive is one module: this one, of fields between bars, is added here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck import JobSpec, SpecError
from unstuck.tasks.formats import kinds
from unstuck.tasks.formats.arrived import ArrivedFile
from unstuck.tasks.formats.decode import decoded
from unstuck.tasks.formats.file_content import Unreadable
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.spec.streams.file_format import file_format, file_formats

BARS = """
import pyarrow as pa

from unstuck.tasks.formats.file_content import lines_of
from unstuck.tasks.spec.streams.file_format import FileFormat


class BarsFormat(FileFormat):
    endings = ("bars",)
    options = ("encoding",)
    values_are_text = True

    def check_columns(self, types):
        if "binary" in types.values():
            raise ValueError("bars hold no bytes")

    def tables(self, source):
        names = [column["name"] for column in source.own_columns]
        for first, lines in lines_of(source.text, source.options.encoding, 1000):
            cells = zip(*(line.decode().split("|") for line in lines))
            yield pa.table(dict(zip(names, cells))), first.__add__


FORMAT = BarsFormat()
"""


@pytest.fixture
def with_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "kinds"
    folder.mkdir()
    (folder / "bars.py").write_text(BARS)
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(folder)])
    file_formats.cache_clear()
    yield
    file_formats.cache_clear()
    file_format.cache_clear()


def spec(columns: str = "id INT, at STRING", **more: object) -> JobSpec:
    stream = {"stream": "/landing", "format": "bars", "schema": columns, **more}
    steps = [{"python": "m:load", "output": "rows"}]
    group = {"name": "load", "inputs": {"landing": stream}, "steps": steps, "spark": False}
    return JobSpec.model_validate(
        {"name": "loads", "outputs": {"rows": {"mode": "append"}}, "groups": [group]}
    )


def arrived(path: Path, text: str) -> ArrivedFile:
    path.write_text(text)
    about = path.stat()
    return ArrivedFile(str(path), f"{about.st_size} {about.st_mtime_ns}")


@pytest.mark.usefixtures("with_bars")
def test_a_new_module_is_a_format_in_specs_and_files(tmp_path: Path) -> None:
    stream = spec(options={"encoding": "ISO-8859-1"}).groups[0].inputs["landing"]
    assert isinstance(stream, StreamInput)
    (rows,) = decoded(arrived(tmp_path / "a.bars", "1|x\n2|y\n"), stream, "UTC", 10**6)
    assert rows.to_pylist() == [{"id": 1, "at": "x"}, {"id": 2, "at": "y"}]
    with pytest.raises(Unreadable, match=r"Line 2: id = q"):
        list(decoded(arrived(tmp_path / "b.bars", "1|x\nq|y\n"), stream, "UTC", 10**6))

    with pytest.raises(SpecError, match="bars hold no bytes"):
        spec("id BINARY")
    with pytest.raises(SpecError, match="have no option header; there are: encoding"):
        spec(options={"header": "true"})


def test_a_format_without_a_module_is_refused() -> None:
    with pytest.raises(SpecError, match="expected csv, json, orc, parquet or text, not 'bars'"):
        spec()
