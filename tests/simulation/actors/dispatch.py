"""What a coordinator sends: wake-ups to the broker, packages and aborts to the warehouse log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from tests.simulation.actors.broker import Broker
from tests.simulation.actors.warehouse import Depot, LogEntry
from tests.simulation.stage.network import Connection
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import JobRecord, Reason
from unstuck.coordinator.model.state import JobState

T = TypeVar("T")


class DispatcherAtHand:
    """Wake-ups into the broker, call by call."""

    def __init__(self, connection: Connection, broker: Broker) -> None:
        self._connection, self._broker = connection, broker

    def send_wake_ups(self, wake_ups: Mapping[str, int]) -> None:
        try:
            for queue in (queue for queue, count in wake_ups.items() for _ in range(count)):
                self._connection.call(
                    f"wake up {queue}", partial(self._broker.push, queue), lost=OSError
                )
        except OSError:
            return  # the rest of the batch is lost with it


class WarehousesAtHand:
    """Packages into the warehouse log: as in ``publishing``, call by call."""

    def __init__(
        self,
        connection: Connection,
        depot: Depot,
        wrote: Callable[[LogEntry], None],
        answered: Callable[[str], None] = lambda job: None,
    ) -> None:
        """
        Args:
            wrote: is told of every entry of the log.
            answered: is told of every job of which a publisher knows for good whether it is
                published.
        """
        self._connection, self._depot, self._wrote, self._answered = (
            connection,
            depot,
            wrote,
            answered,
        )

    def _io(self, what: str, effect: Callable[[], T]) -> T:
        return self._connection.call(what, effect, lost=OSError, of_store=False)

    def publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        if self._connection.trouble.chance(self._connection.trouble.blind):
            return PublishResult(
                trouble=Reason("PUBLISH_TROUBLE", "the warehouse cannot be reached")
            )
        try:
            result = self._publish(state, answered)
        except OSError as error:
            return PublishResult(trouble=Reason("PUBLISH_TROUBLE", str(error)))
        self._answered(state.job.id)
        return result

    def abort(self, state: JobState, why: Reason, answered: Callable[[], None]) -> PublishResult:
        if self._connection.trouble.chance(self._connection.trouble.blind):
            return PublishResult(
                trouble=Reason("PUBLISH_TROUBLE", "the warehouse cannot be reached")
            )
        try:
            number = self._append(state, LogEntry(state.job.id, "abort", code=why.code))
        except OSError as error:
            return PublishResult(trouble=Reason("PUBLISH_TROUBLE", str(error)))
        entry = self._depot.log[number - 1]
        self._answered(state.job.id)
        return (
            PublishResult(failed=why)
            if entry.kind == "abort"
            else PublishResult(number, entry.outputs)
        )

    def _publish(self, state: JobState, answered: Callable[[], None]) -> PublishResult:
        job = state.job.id
        base, package = state.job.base or 0, package_id_of(state.job)
        number = self._io(f"find {job} in the log", lambda: self._depot.find(job, base, package))
        if number is None:
            entry = self._io(f"collect {job}", lambda: package_of(state, self._depot))
            answered()
            if entry.kind == "package" and not entry.outputs:
                return PublishResult()
            number = self._append(state, entry)
        entry = self._depot.log[number - 1]
        if entry.kind == "abort":
            return PublishResult(failed=Reason(entry.code, "the package can never be"))
        return PublishResult(version=number, rows=entry.outputs)

    def _append(self, state: JobState, entry: LogEntry) -> int:
        """As ``Warehouse.append``, call by call: the number of the one entry of the job."""
        job = state.job.id
        number = self._io("head of the log", self._depot.head) + 1
        base, package = state.job.base or 0, entry.package_id
        found = self._io(f"find {job} in the log", lambda: self._depot.find(job, base, package))
        if found is not None:
            return found
        while True:
            self._connection.stall(f"create entry {number} for {job}")
            create = partial(self._create, number, entry)
            if self._io(f"create entry {number} for {job} ({entry.kind})", create):
                return number
            if self._depot.log[number - 1].is_of(job, package):
                return number
            number += 1

    def _create(self, number: int, entry: LogEntry) -> bool:
        created = self._depot.create(number, entry)
        if created:
            self._connection.note(f"{entry.kind} of {entry.publish_id} as number {number}")
            self._wrote(entry)
        return created


def package_id_of(job: JobRecord) -> str:
    """What the package of a job answers."""
    return job.package_id or job.id


def package_of(state: JobState, depot: Depot) -> LogEntry:
    """What a job whose groups are all done publishes."""
    plan = state.plan
    made: dict[str, tuple[int, tuple[str, ...]]] = {}
    for name in plan.groups:
        if plan.publish is None and name not in plan.default_publish:
            continue
        for member in state.members(name):
            record = state.record(member)
            if not record.marked:
                continue
            marker = depot.markers.get(record.marked)
            if marker is None:
                return LogEntry(state.job.id, "abort", code="MARKER_GONE")
            for output, rows in marker.outputs.items():
                total, folders = made.get(output, (0, ()))
                made[output] = (total + rows, (*folders, record.staging))
    wanted = list(made) if plan.publish is None else list(plan.publish)
    if any(output not in made for output in wanted):
        return LogEntry(state.job.id, "abort", code="OUTPUT_MISSING")
    return LogEntry(
        state.job.id,
        "package",
        {output: made[output][0] for output in wanted},
        tuple(folder for output in wanted for folder in made[output][1]),
        package_id=package_id_of(state.job),
    )
