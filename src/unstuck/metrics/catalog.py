"""The catalog of metrics: name, kind, labels and help of each; docs/metrics.md is generated.

Labels are user-defined names or fixed words, never ids, and each metric has a bounded number of
series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from unstuck.coordinator.store.totals import MAX_NAMES

Kind = Literal["gauge", "counter", "histogram"]
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_FAMILIES: dict[Kind, type[Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``most``: its maximum number of series."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    most: int = 200

    def family(self) -> Family:
        """Return an empty family of samples."""
        return _FAMILIES[self.kind](self.name, self.help, labels=self.labels)

    @property
    def samples(self) -> tuple[str, ...]:
        """Return the names of its samples."""
        return (
            tuple(self.name + end for end in ("_bucket", "_count", "_sum"))
            if self.kind == "histogram"
            else (self.name,)
        )


CATALOG: list[MetricSpec] = []


def _metric(kind: Kind, name: str, text: str, *labels: str, most: int = 200) -> MetricSpec:
    CATALOG.append(metric := MetricSpec(kind, f"unstuck_{name}", text, labels, most))
    return metric


UP = _metric(
    "gauge", "up", "1 if Redis answered this scrape; 0 if not, and then there are no other metrics."
)
LEFT_OUT = _metric(
    "gauge",
    "scrape_left_out",
    (
        "What this scrape leaves out: entries in Redis that cannot be read (unreadable), or series "
        "of a metric (too_many)."
    ),
    "what",
    "reason",
)

PROBLEMS = _metric(
    "gauge",
    "problems",
    "Problems that `unstuck now` shows and nobody has acknowledged, by code; of each kind, such as "
    "failed jobs, at most 30 and one more for each acknowledgement.",
    "code",
)
JOBS = _metric("gauge", "jobs", "Jobs in the store.", "status")

JOBS_ENDED = _metric(
    "counter",
    "jobs_ended_total",
    (
        f"Jobs that have ended, by name and status; of {MAX_NAMES} names, and of all others "
        "together as `(other)`. It is 0 for each status of a name, and for schedules that no run "
        "has ended of."
    ),
    "job_name",
    "status",
    most=2000,
)
JOB_DURATION = _metric(
    "histogram",
    "job_duration_seconds",
    "Time of jobs that have ended, from their first claim to their end, whatever that was.",
    "job_name",
)
JOB_LATE = _metric(
    "gauge",
    "job_late_seconds",
    (
        "How long a job that no schedule submits is late, by a notified rule `late`; absent "
        "once one has ended well."
    ),
    "job_name",
)
ATTEMPTS_ENDED = _metric(
    "counter",
    "attempts_ended_total",
    "Attempts of groups that have ended: succeeded, failed, canceled, handed back (released), lost "
    "with their runner, or taken over from a worker that was not heard of for a whole lease "
    "(taken_over).",
    "outcome",
)
PUBLISH_DURATION = _metric(
    "histogram",
    "publish_duration_seconds",
    "Time of publishing, from the end of the last group of a job to its version.",
)

OFFER_AGE = _metric(
    "gauge",
    "offer_oldest_age_seconds",
    (
        "How long the oldest of the next offers of a queue has waited for a runner; of a pool, "
        "also for a slot."
    ),
    "queue",
    "pool",
)
FREE_SLOTS = _metric(
    "gauge", "queue_free_slots", "Runners of a queue that are idle and may take work.", "queue"
)
PROCESSES = _metric(
    "gauge",
    "processes",
    "Coordinators: live or silent. Runners: idle, busy, stopping, unfit for Spark, or silent.",
    "role",
    "state",
)
POOL_SLOTS = _metric(
    "gauge", "pool_slots", "Attempts that may hold a slot of a pool at once.", "pool"
)
POOL_SLOTS_USED = _metric(
    "gauge", "pool_slots_used", "Attempts that hold a slot of a pool.", "pool"
)

UNDECIDED_AGE = _metric(
    "gauge",
    "undecided_oldest_age_seconds",
    (
        "How long the oldest report of a worker, due job and due schedule have waited for a "
        "coordinator; else 0."
    ),
    "of",
)
REPORTS_REFUSED = _metric(
    "counter",
    "reports_refused_total",
    "Reports that changed nothing: of an attempt that was replaced (stale), or after the end of "
    "the job (terminal). A short job has one of these in good health: its last report comes when "
    "its end was read from the record.",
    "reason",
)
DEAD_LETTERS = _metric(
    "gauge",
    "dead_letters",
    "Reports that could not be applied, notices that could not be sent and refused Celery submits.",
)
SWEEP_AGE = _metric("gauge", "sweep_age_seconds", "Time since the last sweep of any coordinator.")

DATASET_ROWS = _metric(
    "counter",
    "dataset_rows_total",
    "Rows of all versions of a dataset that jobs have published.",
    "dataset",
    most=500,
)
DATASET_REJECTED = _metric(
    "counter",
    "dataset_rejected_rows_total",
    "Rows that jobs have rejected of a dataset, in versions that they have published.",
    "dataset",
    most=500,
)
VERSION_TIME = _metric(
    "gauge",
    "dataset_last_version_timestamp_seconds",
    "When a job published the newest version of a dataset.",
    "dataset",
    most=500,
)

SCHEDULES = _metric("gauge", "schedules", "Schedules.", "status")
LAST_SUCCESS = _metric(
    "gauge",
    "schedule_last_success_timestamp_seconds",
    "When the last successful run of a schedule ended; absent before the first.",
    "schedule",
    most=1000,
)
FAILURES = _metric(
    "gauge",
    "schedule_consecutive_failures",
    "Failures in a row of the runs of a schedule.",
    "schedule",
    most=1000,
)

BACKLOG_AGE = _metric(
    "gauge",
    "schedule_backlog_oldest_age_seconds",
    ("How long the oldest unread file or record of the streams of a schedule has waited; else 0."),
    "schedule",
    most=1000,
)

NOTICE_AGE = _metric(
    "gauge",
    "notice_oldest_age_seconds",
    (
        "How long the oldest of the next notices for a target has waited; `(outbox)`: for a "
        "coordinator that sends."
    ),
    "target",
)
NOTICES_ENDED = _metric(
    "counter",
    "notices_ended_total",
    "Notices that were sent or became dead letters, once per target.",
    "outcome",
)

MEMORY_USED = _metric("gauge", "redis_memory_used_bytes", "Memory that Redis uses.")
MEMORY_MAX = _metric(
    "gauge", "redis_memory_max_bytes", "Memory that Redis may use; 0: without a limit."
)
