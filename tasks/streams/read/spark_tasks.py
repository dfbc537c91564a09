"""Read a stream in Spark tasks, which write rows to files and answer in JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

log = logging.getLogger(__name__)

# In the errors of executors.
_NO_PYTHON = ("No module named", "Cannot run program", "PYTHON_VERSION_MISMATCH")

Answer = dict[str, Any]


def in_tasks(
    session: Any,
    parts: Sequence[Callable[[], Answer]],
    errors: Sequence[type[Exception]],
    what: str,
) -> list[Answer] | None:
    """Run each of ``parts`` in a Spark task of its own, and return the answers.

    Returns None if the executors lack required packages.

    Args:
        parts: functions that executors can import; Spark may call one twice.
        errors: raised here as they were raised there; any other is one of Spark.
        what: that is read, for the log.

    Raises: one of ``errors``; what Spark raises.
    """

    def answers(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            encoded = [_answered(parts[number], errors) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"answer": encoded})

    try:
        rows = (
            session.range(0, len(parts), 1, len(parts))
            .mapInArrow(answers, "answer string")
            .collect()
        )
    except Exception as error:
        if not any(map(str(error).__contains__, _NO_PYTHON)):
            raise
        log.warning(
            "the executors of Spark cannot read %s, so its driver reads all: they need the Python "
            "of the workers, with unstuck and what it requires. %s",
            what,
            str(error)[-300:],
        )
        return None
    parsed = [json.loads(row.answer) for row in rows]
    for answer in parsed:
        if "error" in answer:
            name, text = answer["error"]
            raise next(kind for kind in errors if kind.__name__ == name)(text)
    return parsed


def _answered(part: Callable[[], Answer], errors: Sequence[type[Exception]]) -> str:
    try:
        return json.dumps(part())
    except tuple(errors) as error:
        kind = next(kind for kind in errors if isinstance(error, kind))
        return json.dumps({"error": [kind.__name__, str(error)]})
