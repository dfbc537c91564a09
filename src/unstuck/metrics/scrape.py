"""One scrape: all parts query Redis together, and simultaneous scrapes share one result."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial

import redis
from prometheus_client.registry import Collector

from unstuck.coordinator.problems.detect import detect, open_problems
from unstuck.coordinator.problems.problem import ProblemCode
from unstuck.metrics import catalog
from unstuck.metrics.catalog import Family
from unstuck.metrics.parts import PARTS, Part, processes
from unstuck.metrics.sheet import Sheet
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.settings import Settings
from unstuck.views.installation import limits_of, read_state

log = logging.getLogger(__name__)


def scrape(client: redis.Redis, settings: Settings) -> Sequence[Family]:
    """Return the metrics of a fleet now.

    Args:
        client: must decode responses.

    Raises: redis.RedisError: Redis did not answer.
    """
    sheet, keys = Sheet(), Keys(settings.prefix)
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        waiting: list[tuple[str, Part, int]] = []
        parts = {make.__name__: make(pipe, keys, sheet) for make in PARTS}
        for name, part in {
            **parts,
            "processes": processes(pipe, keys, sheet, settings.runner_silence),
        }.items():
            before = len(pipe)
            next(part)
            waiting.append((name, part, len(pipe) - before))
        time_there, *answers = pipe.execute(raise_on_error=False)
        if isinstance(time_there, redis.RedisError):
            # For example while a long script runs: Redis reports it, and answers nothing else.
            raise time_there
        seconds, micros = time_there
        sheet.at = seconds + micros / 1e6
        while waiting:
            asking, waiting = waiting, []
            for name, part, count in asking:
                mine, answers, before = answers[:count], answers[count:], len(pipe)
                if _answered(part, mine, name, sheet):
                    waiting.append((name, part, len(pipe) - before))
                else:
                    del pipe.command_stack[before:]  # of a part that failed while it queried more
            answers = pipe.execute(raise_on_error=False) if waiting else []
    _add_problems(client, settings, sheet)
    sheet.add(catalog.UP, 1)
    return sheet.families()


def _add_problems(client: redis.Redis, settings: Settings, sheet: Sheet) -> None:
    try:
        state = read_state(client, Keys(settings.prefix), settings)
    except redis.ResponseError as error:  # a key is damaged, or this user may not read it
        log.warning("the metric of problems is left out: %s", error)
        sheet.unreadable("problems")
        return
    problems = open_problems(detect(state, limits_of(settings)))
    counts = Counter(problem.code for problem in problems)
    sheet.add_all(catalog.PROBLEMS, (((code.lower(),), counts[code]) for code in ProblemCode))


def _answered(part: Part, answers: list[object], name: str, sheet: Sheet) -> bool:
    """Give a part its answers. Return whether it has more queries; a failing part is left out."""
    try:
        refused = next(
            (answer for answer in answers if isinstance(answer, redis.ResponseError)), None
        )
        if refused is not None:
            part.throw(refused)
        else:
            part.send(answers)
    except StopIteration:
        return False
    # A key may be damaged, or this user of Redis may not read it.
    except Exception as error:  # noqa: BLE001
        log.warning(
            "the metrics of %s cannot be read, and are left out: %s: %s",
            name,
            type(error).__name__,
            error,
        )
        sheet.unreadable(name)
        return False
    return True


class Exporter(Collector):
    """The metrics for the client library of Prometheus, read at each scrape. Thread-safe.

    Safe to use from several threads.
    """

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self._read: Callable[[], Iterable[Family]] = partial(scrape, client, settings)
        self._lock = threading.Lock()
        self._under_way: Future[Iterable[Family]] | None = None
        self._away = False

    def describe(self) -> Iterable[Family]:
        """Return the names, for a registry that must not scrape to learn them."""
        return [metric.family() for metric in catalog.CATALOG]

    def collect(self) -> Iterable[Family]:
        """Return the current metrics; only ``unstuck_up`` (0) if Redis does not answer."""
        with self._lock:
            mine = self._under_way is None
            under_way = self._under_way = self._under_way or Future()
        if mine:
            try:
                under_way.set_result(self._families())
            except BaseException as error:
                under_way.set_exception(error)
                raise
            finally:
                with self._lock:
                    self._under_way = None
        return under_way.result()

    def _families(self) -> Iterable[Family]:
        try:
            families = self._read()
        except redis.RedisError as error:
            if not self._away:
                log.warning("Redis does not answer: unstuck_up is 0 until it does: %s", error)
            self._away = True
            sheet = Sheet()
            sheet.add(catalog.UP, 0)
            return sheet.families()
        self._away = False
        return families
