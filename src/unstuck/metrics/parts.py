"""The parts of a scrape: each reads its data from Redis and writes its samples.

A part is a generator. It puts its queries into the pipeline, yields, and is sent the answers; all
parts share the pipeline, so a scrape takes a fixed number of round trips. Unreadable entries are
left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

import redis
from redis.client import Pipeline

from unstuck.coordinator.decide.timers.leases import LAPSED
from unstuck.coordinator.model.backlog import Backlog
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.coordinator.notices.rules.expected import Expected
from unstuck.coordinator.store.job_store import REPORT_GROUP
from unstuck.coordinator.store.totals import MAX_NAMES, PUBLISHING, Totals, job_of
from unstuck.metrics import catalog
from unstuck.metrics.sheet import Sheet
from unstuck.tasks.protocol.keys import Keys, members_of, pool_of, queue_of
from unstuck.tasks.protocol.process_info import RunnerInfo
from unstuck.tasks.protocol.processes import COORDINATOR_SILENCE, status_of
from unstuck.tasks.protocol.report import OutcomeKind
from unstuck.tasks.spec.outputs import REJECTED
from unstuck.views.waiting_offers import HEADS, MOST_LANES, queued_since, record_of

Answers = list[Any]
Part = Generator[None, Answers, None]

OTHER_JOBS = "(other)"  # no name of a job
MOST_TARGETS, PROBLEMS = 50, 10  # of notices; and problems of a target


def jobs(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    for status in Status:
        pipe.zcard(keys.status(status))
    for status, count in zip(Status, (yield), strict=True):
        sheet.add(catalog.JOBS, count, status.lower())


def ended_jobs(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.hgetall(keys.totals)
    pipe.hkeys(keys.schedules)
    fields, schedule_names = yield
    names = set[str]()
    for field, text in sorted(fields.items()):
        with sheet.reading("totals"):
            totals, job = Totals.from_json(text), job_of(field)
            if job is not None:
                names.add(job)
                _add_ended(sheet, job or OTHER_JOBS, totals.counts)
                sheet.add_histogram(catalog.JOB_DURATION, totals, job or OTHER_JOBS)
            elif field == PUBLISHING:
                sheet.add_histogram(catalog.PUBLISH_DURATION, totals)
    # Further names are counted as OTHER_JOBS, so their own counters would stay 0.
    free = max(0, MAX_NAMES - len(names - {""}))
    for name in sorted(set(schedule_names) - names)[:free]:
        _add_ended(sheet, name, {})


def _add_ended(sheet: Sheet, name: str, counts: Mapping[str, int]) -> None:
    """Add a counter for each status, so that ``increase()`` sees the first end."""
    for status in (status for status in Status if status.terminal):
        sheet.add(catalog.JOBS_ENDED, counts.get(status, 0), name, status.lower())


def late_jobs(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    """Write since when unscheduled jobs are late, starting with the latest."""
    pipe.hgetall(keys.expected_state)
    (texts,) = yield
    since = dict[str, float]()
    for name, text in texts.items():
        with sheet.reading("expected"):
            if late := Expected.from_json(text).late:
                since[name] = min(late.values())
    for name in since:
        pipe.hexists(keys.schedules, name)
    by_itself = [name for name, scheduled in zip(since, (yield), strict=True) if not scheduled]
    by_itself.sort(key=since.__getitem__)
    sheet.add_all(catalog.JOB_LATE, (((name,), sheet.age_since(since[name])) for name in by_itself))


def decisions(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    """Write how far coordinators are behind."""
    pipe.hget(keys.alive, "at")
    pipe.zrange(keys.due, 0, 0, withscores=True)
    pipe.zrange(keys.schedules_due, 0, 0, withscores=True)
    swept, *due = yield
    if swept is not None:
        sheet.add(catalog.SWEEP_AGE, sheet.age_since(float(swept)))
    for of, first in zip(("jobs", "schedules"), due, strict=True):
        sheet.add(catalog.UNDECIDED_AGE, sheet.age_since(first[0][1]) if first else 0.0, of)


def reports(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.xinfo_groups(keys.reports)
    pipe.xpending(keys.reports, REPORT_GROUP)
    try:
        groups, pending = yield
    except redis.ResponseError as error:
        if "no such key" not in str(error).lower():
            raise
        return  # no coordinator has ever run here
    read = next(group["last-delivered-id"] for group in groups if group["name"] == REPORT_GROUP)
    pipe.xrange(keys.reports, min=f"({read}", count=1)
    (unread,) = yield
    waiting = [str(entry) for entry in (pending["min"], *(entry for entry, _ in unread)) if entry]
    oldest = min((int(entry.partition("-")[0]) / 1000 for entry in waiting), default=sheet.at)
    sheet.add(catalog.UNDECIDED_AGE, sheet.age_since(oldest), "reports")


def counters(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.hgetall(keys.counters)
    pipe.xlen(keys.dead)
    counted, dead = yield
    for reason in ("STALE", "TERMINAL"):
        sheet.add(catalog.REPORTS_REFUSED, _number(counted.get(reason, "0")), reason.lower())
    sheet.add(catalog.DEAD_LETTERS, dead)
    for outcome in ("SENT", "DEAD"):
        sheet.add(
            catalog.NOTICES_ENDED, _number(counted.get(f"NOTICE_{outcome}", "0")), outcome.lower()
        )
    for kind in (*OutcomeKind, LAPSED):
        count = _number(counted.get(f"ATTEMPT_{kind.upper()}", "0"))
        sheet.add(catalog.ATTEMPTS_ENDED, count, "taken_over" if kind == LAPSED else kind)


def processes(pipe: Pipeline, keys: Keys, sheet: Sheet, runner_silence: float) -> Part:
    pipe.hgetall(keys.processes)
    (lines,) = yield
    states, coordinators, free = Counter[str](), Counter[str](), Counter[str]()
    for line in lines.values():
        status = status_of(line)
        if status is None:
            sheet.unreadable("processes")
        elif isinstance(status, RunnerInfo):
            state = _state_of(status, sheet.at - runner_silence)
            states[state] += 1
            if state != "silent":
                free.update(dict.fromkeys(status.queues, int(state == "idle")))
        else:
            coordinators[
                "live" if status.heard_at >= sheet.at - COORDINATOR_SILENCE else "silent"
            ] += 1
    for state in ("idle", "busy", "stopping", "unfit", "silent"):
        sheet.add(catalog.PROCESSES, states[state], "runner", state)
    for state in ("live", "silent"):
        sheet.add(catalog.PROCESSES, coordinators[state], "coordinator", state)
    sheet.add_all(catalog.FREE_SLOTS, (((queue,), count) for queue, count in sorted(free.items())))


def _state_of(runner: RunnerInfo, heard_after: float) -> str:
    if runner.heard_at < heard_after:
        return "silent"
    if runner.job is not None:
        return "busy"
    if runner.unfit:
        return "unfit"
    return "stopping" if runner.idle_since is None else "idle"


def offers(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    """Write the slots of pools, and the age of the oldest next offer by queue and pool."""
    pipe.zrange(keys.lanes, 0, MOST_LANES - 1)
    pipe.hgetall(keys.pools)
    lanes, sizes = yield
    for lane in lanes:
        pipe.zrange(keys.ready(lane), 0, HEADS - 1)
    pools = sorted({*sizes, *map(pool_of, lanes)} - {""})
    for pool in pools:
        pipe.zlexcount(keys.pool_slots, *members_of(pool))
    answers = iter((yield))
    oldest, heads = dict[tuple[str, str], float](), dict[str, tuple[str, str]]()
    for lane in lanes:
        oldest[place := (queue_of(lane), pool_of(lane))] = 0.0
        heads |= dict.fromkeys(next(answers), place)
    sheet.add_all(catalog.POOL_SLOTS, (((pool,), _number(sizes.get(pool, "1"))) for pool in pools))
    sheet.add_all(catalog.POOL_SLOTS_USED, [((pool,), next(answers)) for pool in pools])
    for offer in heads:
        pipe.hget(*record_of(keys, offer))
    for place, text in zip(heads.values(), (yield), strict=True):
        with sheet.reading("groups"):
            if (since := queued_since(text)) is not None:
                oldest[place] = max(oldest[place], sheet.age_since(since))
    sheet.add_all(catalog.OFFER_AGE, sorted(oldest.items()))


def datasets(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.hgetall(keys.published)
    (published,) = yield
    times, rows = dict[str, float](), Counter[str]()
    for name, text in published.items():
        with sheet.reading("published"):
            dataset, (_, at, *more) = name.partition("@")[0], text.split()
            times[dataset] = max(float(at), times.get(dataset, 0.0))
            rows[dataset] += int(more[0]) if more else 0
    newest = sorted(times, key=lambda name: -times[name])
    whole = [name for name in newest if not name.endswith(REJECTED)]
    sheet.add_all(catalog.VERSION_TIME, (((name,), times[name]) for name in whole))
    sheet.add_all(catalog.DATASET_ROWS, (((name,), rows[name]) for name in whole))
    rejected = [name.removesuffix(REJECTED) for name in newest if name.endswith(REJECTED)]
    sheet.add_all(catalog.DATASET_REJECTED, (((name,), rows[name + REJECTED]) for name in rejected))


def schedules(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.hgetall(keys.schedules)
    (lines,) = yield
    states, worst = Counter[str](), list[tuple[int, float, str]]()
    for name, text in lines.items():
        with sheet.reading("schedules"):
            line = json.loads(text)
            status = ScheduleStatus(line["status"])
            states[status] += 1
            if not status.terminal:
                worst.append(
                    (-int(line.get("failures", 0)), float(line.get("succeeded_at", 0.0)), name)
                )
    worst.sort()
    for status in ScheduleStatus:
        sheet.add(catalog.SCHEDULES, states[status], status.lower())
    sheet.add_all(catalog.FAILURES, (((name,), -failures) for failures, _, name in worst))
    sheet.add_all(catalog.LAST_SUCCESS, (((name,), at) for _, at, name in worst if at))


def backlogs(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.hgetall(keys.backlogs)
    (texts,) = yield
    ages = list[tuple[float, str]]()
    for name, text in texts.items():
        with sheet.reading("backlogs"):
            backlog = Backlog.from_json(text)
            ages.append((sheet.age_since(backlog.since) if backlog.since else 0.0, name))
    ages.sort(reverse=True)
    sheet.add_all(catalog.BACKLOG_AGE, (((name,), age) for age, name in ages))


def notices(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    """Write, for each target with waiting notices, the oldest of those to be sent next."""
    pipe.xrange(keys.outbox, count=1)
    pipe.zrange(keys.notices_due, 0, MOST_TARGETS - 1)
    unspread, targets = yield
    for target in targets:
        pipe.zrange(keys.notices_for(target), 0, PROBLEMS - 1)
    problems = [
        (target, problem)
        for target, target_problems in zip(targets, (yield), strict=True)
        for problem in target_problems
    ]
    for target, problem in problems:
        pipe.lindex(keys.notices_of(target, problem), 0)
    ages = {
        "(outbox)": sheet.age_since(int(unspread[0][0].partition("-")[0]) / 1000)
        if unspread
        else 0.0
    }
    for (target, _), line in zip(problems, (yield), strict=True):
        with sheet.reading("notices"):
            if line is not None:  # it was sent meanwhile
                ages[target] = max(
                    ages.get(target, 0.0), sheet.age_since(float(line.split(" ")[0]))
                )
    sheet.add_all(catalog.NOTICE_AGE, (((target,), age) for target, age in ages.items()))


def memory(pipe: Pipeline, keys: Keys, sheet: Sheet) -> Part:
    pipe.info("memory")
    (info,) = yield
    sheet.add(catalog.MEMORY_USED, info["used_memory"])
    sheet.add(catalog.MEMORY_MAX, info["maxmemory"])


PARTS: tuple[Callable[[Pipeline, Keys, Sheet], Part], ...] = (
    jobs,
    ended_jobs,
    late_jobs,
    decisions,
    reports,
    counters,
    offers,
    datasets,
    schedules,
    backlogs,
    notices,
    memory,
)


def _number(text: str) -> float:
    """Return a number as Redis stores it; 0 if it is not a number."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
