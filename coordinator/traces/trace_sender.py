"""Sends one trace for each ended job, in a thread of one coordinator.

A trace is recorded after it is sent, so it is sent at least once, each time with the same ids. A
failed send is tried again until the job has been over for an hour. A trace that fails while others
arrive is given up before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import redis
from celery import bootsteps

from unstuck.coordinator.model.records import JobRecord
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.traces.spans import JobSpan, spans_of
from unstuck.tasks.host import how_to_install
from unstuck.tasks.log_lines import about
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import settings, whoami
from unstuck.tasks.transport.redis_client import connect

log = logging.getLogger(__name__)

EVERY = 2.0  # seconds between two looks
TRIED_FOR = 3600.0  # seconds after the end of a job
TERM = 60.0  # seconds without a look after which another coordinator sends
OVERLAP = 60.0  # seconds by which a look goes back, since the clock of Redis may be set back
BATCH = 500
AWAY = 2  # failures in a row, after which the receiver counts as away, until the next look
REFUSED = 5  # looks in which a trace failed and others arrived, after which it is given up
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted(environ: Mapping[str, str]) -> bool:
    """Return whether the variables of OpenTelemetry request traces, and name a target."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none":
        return False
    return bool(exporter or any(environ.get(name) for name in ENDPOINTS))


class TraceSender:
    """Looks for jobs that have ended, and exports their traces."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        retention: float,
        export: Callable[[Iterable[JobSpan]], bool],
        name: str,
    ) -> None:
        """Create the sender.

        Args:
            client: must decode responses.
            retention: that of ended jobs, in seconds.
            export: exports one trace; returns False if not all of it has arrived.
            name: of this coordinator, unique.
        """
        self._redis, self._keys, self._queries = client, keys, Queries(client, keys)
        self._retention, self._export, self._name = retention, export, name
        self._from = 0.0  # all that was to be forgotten before was sent
        self._failures = Counter[str]()  # of the trace of each job that waits
        self._refused = Counter[str]()  # of them, looks in which others arrived
        self._troubled = False

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(EVERY):
            try:
                self.look()
            except redis.RedisError as error:
                log.warning("no traces are sent while Redis does not answer: %s", error)
            except Exception:
                log.exception("traces could not be sent; they are tried again")

    def look(self) -> int:
        """Send the traces of jobs that have ended since the last look. Return how many.

        Raises: redis.RedisError.
        """
        if not self._is_sender():
            self._from = 0.0
            return 0
        seconds, micros = self._redis.time()
        now = seconds + micros / 1e6
        low = max(self._from, now + self._retention - TRIED_FOR)
        ended = cast(
            list[tuple[str, float]],
            self._redis.zrangebyscore(self._keys.ended, low, "+inf", withscores=True),
        )
        waiting = self._untraced(ended)
        sent, failed = self._send_all(waiting, now)
        if sent:
            self._give_up(failed, now)
            for counter in (self._failures, self._refused):
                for job in counter.keys() - waiting.keys():
                    del counter[job]
            self._redis.zremrangebyscore(self._keys.traced, "-inf", now - 2 * TRIED_FOR)
        if ended:
            self._from = min(waiting.values(), default=ended[-1][1]) - OVERLAP
        return sent

    def _untraced(self, ended: list[tuple[str, float]]) -> dict[str, float]:
        """Return the ended jobs whose trace was not sent, with the times of their ends."""
        waiting: dict[str, float] = {}
        for start in range(0, len(ended), BATCH):
            batch = ended[start : start + BATCH]
            sent_at = self._redis.zmscore(self._keys.traced, [job for job, _ in batch])
            for (job, at), sent in zip(batch, sent_at, strict=True):
                if sent is None:
                    waiting[job] = at
        return waiting

    def _send_all(self, waiting: dict[str, float], now: float) -> tuple[int, list[str]]:
        """Send traces, and remove the sent ones from ``waiting``.

        Jobs that have failed come last. Returns the number of sent ones, and the jobs that failed.
        """
        sent, failed, in_a_row = 0, list[str](), 0
        for job in sorted(waiting, key=self._failures.__getitem__):
            if self._send(job, now):
                self._note(job, now)
                del waiting[job]
                sent, in_a_row = sent + 1, 0
                continue
            failed.append(job)
            self._failures[job] += 1
            in_a_row += 1
            if in_a_row == AWAY:
                break
        return sent, failed

    def _note(self, job: str, now: float) -> None:
        self._redis.zadd(self._keys.traced, {job: now})
        self._is_sender()

    def _give_up(self, failed: Iterable[str], now: float) -> None:
        """Give up traces that have failed in several looks while others arrived."""
        for job in failed:
            self._refused[job] += 1
            if self._refused[job] == REFUSED:
                log.error(
                    "the trace of job %s has failed %d times while others arrived: it is given up",
                    job,
                    REFUSED,
                )
                self._note(job, now)

    def _is_sender(self) -> bool:
        """Return whether this coordinator sends traces.

        Two that both do so for a moment send the same ids.
        """
        key, term = self._keys.trace_sender, int(TERM * 1000)
        if self._redis.set(key, self._name, nx=True, px=term):
            return True
        return self._redis.get(key) == self._name and bool(self._redis.pexpire(key, term))

    def _send(self, job: str, now: float) -> bool:
        """Send one trace. False: it is to be tried again."""
        fields = cast(dict[str, str], self._redis.hgetall(self._keys.of(job).job))
        with about(job=job):
            try:
                record = JobRecord.from_fields(fields) if fields else None
                if record is None or record.ended_at < now - TRIED_FOR:
                    return True  # an index may be older than a record
                arrived = self._export(spans_of(record, self._queries.every_event(job)))
            except redis.RedisError:
                raise
            except Exception:
                # Of this job alone, such as one of a newer release.
                log.exception("no trace of job %s can be made", job)
                return True
            if not arrived and not self._troubled:
                log.warning(
                    "the trace of job %s could not be sent; it is tried again for an hour", job
                )
            self._troubled = not arrived
        return arrived


class TraceStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs the sender beside the consumer of a coordinator; it stays while Celery reconnects."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()

    def shutdown(self, parent: Any) -> None:
        self._stopping.set()

    def _run(self) -> None:
        try:
            # Imported here, since it needs the extra ``otel``.
            from unstuck.coordinator.traces.otel import TraceExport, exporters_of

            export = TraceExport(exporters_of(os.environ), os.environ)
        except Exception as error:  # noqa: BLE001 - jobs run on without traces
            how = f"{how_to_install('otel')}, or set OTEL_TRACES_EXPORTER=none"
            log.warning("no traces are sent: %s: %s. %s", type(error).__name__, error, how)
            return
        process_settings = settings()
        client = connect(process_settings.redis_url)
        TraceSender(
            client, Keys(process_settings.prefix), process_settings.retention, export, whoami()
        ).run(self._stopping)
        export.close()
