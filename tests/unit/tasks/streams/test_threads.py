"""A step may read and write in threads of its own: the stream is looked up once, and one output
holds its position.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.tasks.streams.arrived.test_listing import arrive, stream_of
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.token import Token
from unstuck.tasks.steps.step_inputs import PublishedDatasets
from unstuck.tasks.steps.stream_reading import StreamReading
from unstuck.tasks.steps.work import Work
from unstuck.tasks.streams.read.group_stream import Reader
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse

THREADS = 8


@pytest.fixture
def work(tmp_path: Path) -> Work:
    (folder := tmp_path / "in").mkdir()
    arrive(folder, *(f"{n}.json" for n in range(200)), text='{"id": 1}')
    warehouse = tmp_path / "warehouse"
    Warehouse(str(warehouse)).ensure_id()
    files, token = Files(str(warehouse)), Token("job", "load", 1, "n", "c")
    published = PublishedDatasets(Warehouse(str(warehouse)), 0)
    outputs = [f"loads{n}" for n in range(THREADS)]
    stream = StreamReading(
        Reader(None, files, token.staging),
        token,
        Secrets(),
        published,
        {"events": stream_of(folder)},
        outputs,
    )
    return Work(files, token, None, {}, published=published, stream=stream)


def at_once(do: Any) -> list[Any]:
    barrier = Barrier(THREADS)

    def one(n: int) -> Any:
        barrier.wait()
        return do(n)

    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(one, range(THREADS))]


def test_threads_of_a_step_read_the_same_rows_and_one_output_holds_the_position(work: Work) -> None:
    frames = at_once(lambda n: work.read("events"))
    assert {id(frame) for frame in frames} == {id(frames[0])}
    made = at_once(lambda n: work.write(f"loads{n}", pa.table({"id": [n]})))
    held_by = [one.checkpoint.held_by for one in made]
    assert (held_by.count(""), len({*held_by})) == (1, 2)
    work.check_refused()
