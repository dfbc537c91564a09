"""Publishes the outputs of a job: all become visible together, once, or never.

``publish`` and ``abort`` compete for the one log entry of the job's publish id. The first to create
it wins. Any coordinator may repeat both after a crash.
"""
# Redis is not asked, so a store that was rolled back cannot publish twice. Nothing here writes to
# Redis, decides a status, or calls a publish failed whose outcome is unknown.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.model.decision import PublishResult
from unstuck.coordinator.model.records import Reason
from unstuck.coordinator.publishing import tables as table_publishing
from unstuck.coordinator.publishing.dataset_change import change_of
from unstuck.coordinator.publishing.expectation_checks import check_expectations
from unstuck.coordinator.publishing.lost_updates import check_unchanged
from unstuck.coordinator.publishing.package import Package, read_package
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.publishing.streams.stream_positions import with_checkpoint, with_news
from unstuck.coordinator.publishing.table_formats.table_writer import Candidate
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.protocol.replaced import Replaced
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.dataset_owner import DATASET_OWNED, Owner, Owners, owner_after, refusal
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Change, Entry, State, owners_of
from unstuck.tasks.warehouse.marker import StagedOutput


def publish(request: PublishRequest, answered: Callable[[], None] = lambda: None) -> PublishResult:
    """Make the outputs of a job visible, all in one entry of the warehouse log.

    Args:
        answered: called after each answer of the warehouse; there may be tens of thousands.

    Returns:
        The result by the entry. ``failed`` is final, and the same on every repeat.

    Raises:
        WarehouseMismatch: this process does not see the job's warehouse.
        LogBroken, WarehouseNewer, WarehouseUnsupported, OSError: the outcome is unknown. Repeat, or
            ``abort``. The job must not be called failed before one of them has answered.
    """
    warehouse = _open(request, answered)
    # The log comes first: the staging of a job that is published already may be gone.
    entry_number = warehouse.find_publish(request.publish_id, request.base, request.package_id)
    if entry_number is not None and (entry := warehouse.entry(entry_number)) is not None:
        return _answer(warehouse, entry)
    reach(Point.BEFORE_PACKAGE, request.job)
    try:
        package = read_package(warehouse.storage, request)
        as_of = request.at if request.judged_at is None else request.judged_at
        check_expectations(request.outputs, package.expected, as_of)
        idle = dict.fromkeys(output.nothing_new for output in package.outputs.values())
        idle.pop("", None)
        if idle:
            package = package._replace(outputs=with_news(package.outputs, warehouse.state()))
        if not package.outputs:
            return PublishResult(nothing_new="; ".join(idle) or _skipped(request))
        entry = _append_package(warehouse, request, package)
    except PublishFailed as failure:
        # Another publisher may have read the markers before and be frozen since. Its entry must
        # not appear under a job that FAILED, so the failure takes the job's place in the log.
        entry = _append_abort(warehouse, request, failure.code, str(failure))
    return _answer(warehouse, entry)


def _skipped(request: PublishRequest) -> str:
    return "the groups of its outputs were skipped" if request.requested else ""


def _append_package(warehouse: Warehouse, request: PublishRequest, package: Package) -> Entry:
    """Return the entry of the publish id: this package, or an earlier entry.

    Raises: PublishFailed, TableTrouble, OSError.
    """
    tables = _tables(warehouse, request, package.outputs)

    def entry_of(n: int, state: State) -> Entry:
        """Return the package for the number ``n``. Raises: PublishFailed."""
        owners = owners_of(state)
        _check_owners(request, package.outputs, owners)
        datasets = {}
        for name, output in package.outputs.items():
            _check_read_version(warehouse, request, package, name, state)
            spec, published = request.spec_of(name, output), state.get(name)
            change = change_of(name, output, spec, published, tables.get(name))
            change = _with_owner(change, request, spec, owners.get(output.rejected_of or name))
            change = replace(change, inputs=package.inputs_of(name), steps=package.steps[name])
            datasets[name] = with_checkpoint(name, change, output, published)
        return request.entry(
            n,
            "package",
            params=dict(request.params),
            datasets=datasets,
            tokens=package.tokens,
            made_on=package.made_on,
            tables={name: t.made_by(n, name, state.get(name)) for name, t in tables.items()},
        )

    while True:
        try:
            entry, _ = warehouse.append(
                request.publish_id, request.base, entry_of, request.package_id
            )
            return entry
        except table_publishing.TableMoved:
            tables = _tables(warehouse, request, package.outputs)


def _check_read_version(
    warehouse: Warehouse, request: PublishRequest, package: Package, name: str, state: State
) -> None:
    """Check that a dataset that was made from itself has not changed. Raises: PublishFailed."""
    published, output = state.get(name), package.outputs[name]
    own_versions = package.sources[name].get(name)
    if not own_versions or published is None or published.changed <= request.base:
        return
    before = warehouse.state(request.base, removed=True).get(name)
    if (before.changed if before is not None else 0) in own_versions:
        check_unchanged(name, output, request.spec_of(name, output), before, published)


def _check_owners(
    request: PublishRequest, outputs: Mapping[str, StagedOutput], owners: Owners
) -> None:
    """Check that the job may publish its outputs. Raises: PublishFailed.

    Rejected rows belong to the owner of their output.
    """
    names = dict.fromkeys(output.rejected_of or name for name, output in outputs.items())
    if why := refusal(names, owners, request.job_name, take_over=request.take_over):
        raise PublishFailed(DATASET_OWNED, f"{why}. Nothing was published")


def _with_owner(
    change: Change, request: PublishRequest, spec: OutputSpec, owner: Owner | None
) -> Change:
    """Return ``change`` with the new owner of the dataset; ``owner`` is the one before."""
    after = owner_after(owner, request.job_name, spec.shared_with, take_over=request.take_over)
    change = replace(change, owner=after)
    if owner is None or after is None or owner.job_name == after.job_name:
        return change
    return replace(change, taken_from=owner.job_name)


def abort(
    request: PublishRequest, why: Reason, answered: Callable[[], None] = lambda: None
) -> PublishResult:
    """Ensure that a job is never published, unless it is published already; return which.

    It is used by cancel, force-stop and the cancel deadline during publishing. Errors and repeats
    are as for ``publish``.
    """
    warehouse = _open(request, answered)
    entry = _append_abort(warehouse, request, why.code, why.text)
    return PublishResult(failed=why) if entry.kind == "abort" else _answer(warehouse, entry)


def _append_abort(warehouse: Warehouse, request: PublishRequest, code: str, reason: str) -> Entry:
    """Return the entry of the publish id: this ABORT, or an earlier entry."""
    return warehouse.append(
        request.publish_id,
        request.base,
        lambda n, _: request.entry(n, "abort", code=code, reason=reason),
    )[0]


def _open(request: PublishRequest, answered: Callable[[], None]) -> Warehouse:
    """Open the job's warehouse. Raises: WarehouseMismatch, now and at every later write."""
    warehouse = Warehouse(request.warehouse, request.warehouse_id)
    warehouse.storage.answered = answered
    warehouse.storage.check()
    return warehouse


def _tables(
    warehouse: Warehouse, request: PublishRequest, outputs: Mapping[str, StagedOutput]
) -> dict[str, table_publishing.Target]:
    """Return the tables of outputs, each checked.

    Raises: PublishFailed, TableTrouble, OSError.
    """
    specs = {
        name: spec
        for name, spec in request.outputs.items()
        if spec.table is not None and name in outputs
    }
    if not specs:
        return {}
    state = warehouse.state()
    for name in specs:
        # An earlier publish is written first, since it may create or change the table.
        published = state.get(name)
        if published is not None and published.table is not None:
            table_publishing.write_tables(warehouse, warehouse.existing_entry(published.changed))
    return {
        name: table_publishing.check(
            Candidate(warehouse, request.job, name, outputs[name], spec), state.get(name)
        )
        for name, spec in specs.items()
    }


def _answer(warehouse: Warehouse, entry: Entry) -> PublishResult:
    """Return the result by an entry, after its tables are written. Raises: TableTrouble."""
    if entry.tables:
        table_publishing.write_tables(warehouse, entry)
    if entry.kind == "abort":
        code, text = entry.code or "PUBLISH_ABORTED", entry.reason or "publishing was aborted"
        return PublishResult(failed=Reason(code, text))
    rows: dict[str, int] = {}
    replacements: dict[str, Replaced] = {}
    owners_before: dict[str, str] = {}
    left = 0
    for name, change in entry.datasets.items():
        rows[name] = change.rows
        if change.replaced is not None:
            replacements[name] = change.replaced
        if change.taken_from:
            owners_before[name] = change.taken_from
        if change.checkpoint is not None and not change.checkpoint.held_by:
            left += change.checkpoint.counts.get("left", 0)
    return PublishResult(
        entry.n, rows, replacements, left=left, taken_over=owners_before, at=entry.at
    )
