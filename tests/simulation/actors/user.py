"""The user: gives commands at the worst moments, through the real ``Client``.

To running, publishing, paused and ended jobs, once or twice, with lost replies: those that the
connection repeats by itself (the same command id) and those that the user repeats (another one).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import redis

import unstuck.coordinator.submitter
from tests.simulation.actors.broker import Broker
from tests.simulation.actors.coordinators import StoreAtHand, readable
from tests.simulation.actors.warehouse import Depot
from tests.simulation.model.store import ModelStore
from tests.simulation.rules.broken import WORD, Broken
from tests.simulation.rules.user.adopted import RETRIED
from tests.simulation.stage.network import Connection
from tests.simulation.stage.retries import Retries
from tests.simulation.stage.stage import Stage, Turn
from tests.simulation.stage.trouble import Trouble
from tests.simulation.stage.user_requests import UserRequest
from unstuck.coordinator.commands.apply import CommandApplier
from unstuck.coordinator.errors import NewerJob, NoSuchGroup, NoSuchJob, Refused
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.state import JobState
from unstuck.coordinator.publishing.breaker import CircuitBreaker
from unstuck.coordinator.requests.job_requests import JobRequests
from unstuck.coordinator.spec.problems import SpecError
from unstuck.coordinator.store.answers import Submission
from unstuck.coordinator.store.job_queries import Queries
from unstuck.coordinator.store.job_store import Store
from unstuck.coordinator.store.submissions import Submissions
from unstuck.coordinator.submitter import Submitter
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.dataset_owner import OwnersAt
from unstuck.tasks.warehouse.files import Files

T = TypeVar("T")


class _QueriesAtHand:
    """As much of ``Queries`` as commands are judged by."""

    def __init__(
        self, connection: Connection, core: ModelStore, knows: Callable[[int], bool]
    ) -> None:
        self._connection, self._core, self._knows = connection, core, knows

    def state(self, job: str) -> tuple[JobState, float, float | None] | None:
        def read() -> tuple[JobState, float, float | None] | None:
            state = self._core.load(job)
            if state is not None:
                readable(state.job, self._knows)
            return None if state is None else (state, self._core.now, self._core.due.get(job))

        return self._connection.call(f"read all of {job}", read)


class _ClientStore(StoreAtHand):
    """The store as a client sees it, which makes new jobs."""

    retries: Retries

    def submitted(self, key: str, fingerprint: str) -> str | None:
        return self._call(f"look for {key}", lambda: self._core.submitted(key, fingerprint))

    def vacuums(self, warehouse_id: str) -> int:
        return 0

    def submit(
        self,
        submission: Submission,
        summary: str,
        reason: str = "",
        vacuums: int = 0,
        expect: str = "",
    ) -> tuple[str, bool]:
        assert summary
        assert not vacuums
        assert not expect, "a run of a schedule"
        job = submission.job

        def effect() -> tuple[str, bool]:
            answer = self._core.submit(job, submission.fingerprint, reason)
            if answer[1]:
                self.retries.stored(job)
            self._connection.note(f"submit {job.id} as a retry of {job.retry_of}: {answer}")
            return answer

        return self._call(f"submit {job.id}", effect)


class _WarehouseAtHand:
    """As much of ``Warehouse`` as a client asks of it."""

    def __init__(self, connection: Connection, depot: Depot) -> None:
        self._connection, self._depot = connection, depot

    def ensure_id(self) -> str:
        return self.identity()

    def identity(self) -> str:
        return "w"

    def tried_id(self) -> str:
        return self.identity()

    def check_id(self, expected: str) -> None:
        assert expected == self.identity(), "there is one warehouse here"

    def readable(self) -> tuple[int, int]:
        return 0, self._connection.call(
            "head of the log", self._depot.head, lost=OSError, of_store=False
        )

    def owners(self, version: int, known: OwnersAt | None = None) -> OwnersAt:
        return OwnersAt(version, {})

    @property
    def storage(self) -> Files:
        return Files("/nowhere")

    def find_since(
        self, wanted: Callable[[str, str], bool], version: int, since: float, known: object
    ) -> tuple[int, str] | None:
        entries = [(slot, self._depot.log[slot - 1]) for slot in range(version, 0, -1)]
        found = (
            (slot, entry.publish_id)
            for slot, entry in entries
            if wanted(entry.publish_id, entry.package_id)
        )
        return self._connection.call(
            "search the log", lambda: next(found, None), lost=OSError, of_store=False
        )


class _AtOnce(CircuitBreaker):
    """Asks the warehouse on the stack of whoever asks: here nobody waits, and no thread may take
    turns.
    """

    def call(
        self, place: str, what: str, function: Callable[[], T], limit: float | None = None
    ) -> T:
        return function()


class _RequestsAtHand(JobRequests):
    """Requests on a store of ours."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        core: ModelStore,
        broker: Broker,
        stage: Stage,
        knows: Callable[[int], bool],
        retries: Retries,
    ) -> None:
        self.settings = settings
        store = _ClientStore(connection, core, broker, dict, knows)
        store.retries = retries
        self._store = cast(Store, store)
        self._submitter = Submitter(settings, None, cast(Submissions, store), _AtOnce())
        self._queries = cast(Queries, _QueriesAtHand(connection, core, knows))
        self._applier = CommandApplier(
            store, stage.mint, lambda: stage.now, lambda seconds: Turn.current().pause(seconds)
        )


class User:
    """Somebody at a shell, which may be killed under a command, and is opened again."""

    def __init__(
        self,
        stage: Stage,
        trouble: Trouble,
        core: ModelStore,
        broker: Broker,
        settings: Settings,
        requests: Iterable[UserRequest],
        knows: Callable[[int], bool],
        depot: Depot,
        retries: Retries,
    ) -> None:
        self._stage, self._trouble, self._core, self._retries = stage, trouble, core, retries
        connection = Connection(stage, trouble, self._killed)
        connection.of_coordinator = False
        self._warehouse = _WarehouseAtHand(connection, depot)
        self._fleet = _RequestsAtHand(settings, connection, core, broker, stage, knows, retries)
        self._requests = sorted(
            (request for request in requests if not request.moment), key=lambda request: request.at
        )
        self._shell: Turn | None = None
        self._soon: list[Turn] = []
        self._due = [request for request in requests if request.moment]
        self._open(self._requests)

    @property
    def busy(self) -> bool:
        """There are commands to come."""
        return bool(self._requests) or any(not turn.dead for turn in self._soon)

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """While it lasts, the client finds the warehouse of the history, and ids of new jobs that
        are its own.
        """
        module: Any = unstuck.coordinator.submitter
        before = module.Warehouse, module.new_job_id, module.publish
        module.Warehouse, module.new_job_id = lambda uri: self._warehouse, self._retries.new_id
        module.publish = lambda request: PublishResult(request.base + 1)
        try:
            yield
        finally:
            module.Warehouse, module.new_job_id, module.publish = before

    def happened(self, moment: str, job: str) -> None:
        """Inject the fault now, if one was wished for."""
        root = self._retries.root(job)
        request = next(
            (request for request in self._due if (request.moment, request.job) == (moment, root)),
            None,
        )
        if request is None or (moment != "publishing" and self._stage.rng.random() < 0.4):
            return
        self._due.remove(request)
        delay = self._stage.rng.uniform(0.0, self._stage.rng.choice((0.005, 0.03, 0.5, 2.0)))
        self._give_soon(replace(request, job=job), delay)
        if request.given == "pause" and not request.then and self._stage.rng.random() < 0.6:
            self._give_soon(
                UserRequest(0.0, job, "resume"),
                delay + self._stage.rng.choice((0.1, 3.0, 20.0)),
            )

    def _give_soon(self, request: UserRequest, delay: float) -> None:
        self._soon.append(Turn(self._stage, "user", lambda: self._give_all(request), delay))

    def resume(self, jobs: Iterable[str]) -> None:
        """At the end of all trouble."""
        self._open([UserRequest(self._stage.now, job, "resume") for job in jobs])

    def _open(self, requests: list[UserRequest]) -> None:
        self._requests = requests
        if requests:
            self._shell = Turn(
                self._stage, "user", self._life, max(0.0, requests[0].at - self._stage.now)
            )

    def _life(self) -> None:
        while self._requests:
            Turn.current().pause(max(0.0, self._requests[0].at - self._stage.now))
            self._give_all(self._requests[0])
            self._requests.pop(0)

    def _give_all(self, request: UserRequest) -> None:
        job = self._give(request)
        for delay, given in request.then:
            Turn.current().pause(delay)
            job = self._give(UserRequest(0.0, job, given, twice=request.twice))

    def _give(self, request: UserRequest) -> str:
        """Answers the job that is spoken of from now on: after a retry, the new one."""
        job = request.job
        for _ in range(2 if request.twice else 1):
            # A user whose shell says that the store is away asks again, up to a point.
            for _ in range(self._stage.rng.randint(1, 3)):
                try:
                    said, job = self._said(request)
                except (redis.ConnectionError, OSError) as error:
                    self._stage.log("user", f"{request.given} {request.job}: {error}")
                except NoSuchJob:
                    return job
                except NewerJob as error:
                    self._stage.log("user", f"{request.given} {request.job}: NEWER, {error}")
                    break
                except (NoSuchGroup, SpecError) as error:
                    self._stage.log("user", f"{request.given} {request.job}: WRONG, {error}")
                    break
                except Refused as error:
                    self._stage.log(
                        "user", f"{request.given} {request.job}: RETRY REFUSED, {error}"
                    )
                    break
                else:
                    self._stage.log("user", f"{request.given} {request.job}: {said}")
                    break
        return job

    def _said(self, request: UserRequest) -> tuple[str, str]:
        """What was answered, and the job that is spoken of from now on."""
        client, job, given = self._fleet, request.job, request.given
        if not isinstance(given, str) and given.word == "retry":
            return self._retried(job, given.values)
        if isinstance(given, str):
            how = {"now": True} if request.now else {}
            said = client.command(job, given, by="user", **how)
        elif given.word == "alter":
            # The reason says what was asked for, so that what was written can be held against it.
            asked_for = dict(given.values)
            said = client.command(
                job, "alter", values=asked_for, reason=json.dumps(asked_for), by="user"
            )
        else:
            said = client.command(job, given.word, group=given.group, by="user")
        return f"{said.answer}, {said.text}", job

    def _retried(self, job: str, params: Mapping[str, Any]) -> tuple[str, str]:
        may_be = self._may_be_retried(job)
        try:
            made = self._fleet.retry(job, params=params, reason="once more", by="user")
        except Refused as error:
            stands = "was retried before" in str(error)
            if (
                may_be and not stands and self._may_be_retried(job)
            ):  # a rollback may have come between
                raise Broken(
                    WORD, f"a retry of {job} was refused, and it has ended: {error}"
                ) from None
            raise
        return f"{'RETRIED' if made.new else 'RETRIED BEFORE'} as {made.id}", made.id

    def _may_be_retried(self, job: str) -> bool:
        return job in self._core.jobs and self._core.jobs[job].record.status in RETRIED

    def _killed(self) -> None:
        self._stage.log("user", "the shell is KILLED")
        if Turn.current() is self._shell:
            self._open(self._requests[1:])
