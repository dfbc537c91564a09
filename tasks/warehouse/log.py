"""The warehouse log: what is published, and the only thing that readers believe.

``_log/<n>.json`` is one package of outputs. Entries are created in order, only if absent, and never
change, so the process that creates entry *n* has published *n*.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from unstuck.tasks.errors import (
    DatasetNotFound,
    LogBroken,
    VersionRemoved,
    WarehouseMismatch,
    WarehouseNewer,
)
from unstuck.tasks.failpoints import Point, reach
from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.protocol.report import in_short
from unstuck.tasks.spec.table_formats.registry import table_format
from unstuck.tasks.warehouse.dataset_owner import OwnersAt
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import (
    ENTRY_VERSION,
    DatasetState,
    Entry,
    State,
    fold,
    owners_after,
    owners_of,
)
from unstuck.tasks.warehouse.view_file import rewrite_kept_views

SNAPSHOT_EVERY = 50
ID_FILE = "_warehouse_id"
_LOG = "_log"
_NAME = re.compile(r"(\d{12,})(?:\.(snapshot|oldest|vacuumed))?\.json")

log = logging.getLogger(__name__)

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)
_STATE: TypeAdapter[State] = TypeAdapter(State, config=DEFERRED)


class _Listing(NamedTuple):
    """The contents of a log by file names, and the versions with a snapshot, newest first."""

    head: int
    snapshots: list[int]
    oldest: int
    vacuumed: int


class _Noted(NamedTuple):
    """A warehouse as its file of identity says, and the address at which its place was tried."""

    id: str
    address: str


_tried: set[_Noted] = set()  # by this process, or found to be tried


class Warehouse:
    """The log of the warehouse at ``uri``.

    It has no state but the address. Each call reads the files.
    """

    def __init__(self, uri: str, expected_id: str | None = None) -> None:
        """Open the log of a warehouse.

        Args:
            expected_id: the id that the warehouse must have, or every write raises
                WarehouseMismatch; None accepts any id.

        Raises:
            ValueError: ``uri`` cannot be the address of a warehouse (see ``Files``).
        """
        self.storage = Files(
            uri, None if expected_id is None else partial(self.check_id, expected_id)
        )

    def ensure_id(self) -> str:
        """Return the id of the warehouse, and create it if there is none.

        It is created once, and only in a place that can create a file exclusively.

        Raises: WarehouseUnsafe, WarehouseUnsupported: this place does not, or cannot.
        """
        noted = self._noted()
        if noted is None:
            self.storage.try_place()
            self.storage.create(ID_FILE, f"{uuid.uuid4().hex}\n{self.storage.address}\n".encode())
            noted = self._read_id()  # which may be of another process
        self._ensure_tried(noted)
        return noted.id

    def identity(self) -> str | None:
        """Return the id of the warehouse as seen from this process; None if there is none.

        Raises: OSError.
        """
        noted = self._noted()
        return None if noted is None else noted.id

    def tried_id(self) -> str | None:
        """Return the id as ``identity`` does, for a process that submits.

        Raises: WarehouseUnsafe: as ``check_id``, if this process may find out.
        """
        noted = self._noted()
        if noted is not None:
            # This process may have no right to write; those who write try it themselves.
            with suppress(OSError):
                self._ensure_tried(noted)
        return None if noted is None else noted.id

    def check_id(self, expected: str) -> None:
        """Check that this process sees the ``expected`` warehouse, in a safe place."""
        noted = self._noted()
        if noted is None or noted.id != expected:
            what = "no warehouse" if noted is None else f"warehouse {noted.id}"
            raise WarehouseMismatch(
                f"there is {what} at {self.storage.uri('')} as seen from this process; the job was "
                f"submitted to warehouse {expected}. Usually the folder is not shared between the "
                "hosts, or not mounted on this one"
            )
        self._ensure_tried(noted)

    def _noted(self) -> _Noted | None:
        try:
            return self._read_id()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _read_id(self) -> _Noted:
        id_, _, address = self.storage.read(ID_FILE).decode().partition("\n")
        return _Noted(id_.strip(), address.strip())

    def _ensure_tried(self, noted: _Noted) -> None:
        """Test this place, unless a process has tested it at the same address before."""
        here = _Noted(noted.id, self.storage.address)
        if here == noted or here in _tried:
            return
        note = f"_tried/{hashlib.sha256(here.address.encode()).hexdigest()[:32]}"
        if self.storage.size(note) is None:
            self.storage.try_place()
            _tried.add(here)  # before the note, whose writing asks for it
            self.storage.create(note, here.address.encode())
        _tried.add(here)

    def head(self) -> int:
        """Return the newest version; 0 if nothing is published.

        Needs one listing, however long the log.

        """
        return self._listing().head

    def readable(self) -> tuple[int, int]:
        """The oldest and the newest version that can be read, by one listing.

        0 while no vacuum has removed any; 0 while nothing is published.
        """
        listing = self._listing()
        return listing.oldest, listing.head

    def vacuumed(self) -> int:
        """The version up to which a vacuum has removed everything that it could."""
        return self._listing().vacuumed

    def keep_from(self, n: int) -> None:
        """Say that versions older than ``n`` can no longer be read. Raises: as ``create_entry``."""
        self.storage.create(f"{_LOG}/{n:012d}.oldest.json", b"{}")

    def finish_vacuum(self, n: int) -> None:
        """Record that all files were removed that only versions older than ``n`` have.

        Raises: as ``create_entry``.
        """
        self.storage.create(f"{_LOG}/{n:012d}.vacuumed.json", b"{}")

    def _listing(self) -> _Listing:
        """List the log by its file names.

        The listing of a folder that others write to may miss an entry and show a later one, so a
        hole in it proves nothing. The newest name does: its entry could be created only after all
        before it.
        """
        numbers: dict[str, list[int]] = {"": [0], "snapshot": [], "oldest": [0], "vacuumed": [0]}
        for name in self.storage.names(_LOG):
            if match := _NAME.fullmatch(name):
                numbers[match[2] or ""].append(int(match[1]))
        newest_first = sorted(numbers["snapshot"], reverse=True)
        return _Listing(
            max(numbers[""]), newest_first, max(numbers["oldest"]), max(numbers["vacuumed"])
        )

    def entry(self, n: int) -> Entry | None:
        """Return the entry with the number ``n``; None if the number is free.

        Raises:
            WarehouseNewer: a later release wrote it; upgrade this process.
            LogBroken: it cannot be read.
        """
        path = _entry_path(n)
        try:
            text = self.storage.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = json.loads(text)
            if (
                isinstance(data, dict)
                and isinstance(version := data.get("version"), int)
                and version > ENTRY_VERSION
            ):
                raise WarehouseNewer(
                    f"entry {n} of the log at {self.storage.uri('')} is of version {version}, this "
                    f"release reads up to {ENTRY_VERSION}; upgrade Unstuck in this process"
                )
            entry = _ENTRY.validate_python(data)
        except (ValueError, RecursionError) as error:
            raise LogBroken(
                f"the log entry {self.storage.uri(path)} cannot be read: {in_short(error)}"
            ) from error
        if entry.n != n:
            raise LogBroken(
                f"the log entry {self.storage.uri(path)} says that it is entry {entry.n}"
            )
        return entry

    def existing_entry(self, n: int) -> Entry:
        """Return the entry of a number that cannot be free. Raises: LogBroken, WarehouseNewer."""
        entry = self.entry(n)
        if entry is None:
            raise LogBroken(
                f"entry {n} of the log at {self.storage.uri('')} is missing, though later ones "
                "stand. Nothing in Unstuck removes entries; restore "
                f"{self.storage.uri(_entry_path(n))} from a backup"
            )
        return entry

    def state(self, version: int | None = None, *, removed: bool = False) -> State:
        """Return all datasets at ``version`` (None for the newest), from the nearest snapshot on.

        Args:
            removed: also if the log says that a vacuum removes this version.

        Raises:
            DatasetNotFound: the log has no such version.
            VersionRemoved: it had one.
            LogBroken, WarehouseNewer: an entry is missing, unreadable, or of a later release.
        """
        listing = self._listing()
        version = listing.head if version is None else version
        if not 0 <= version <= listing.head:
            raise DatasetNotFound(
                f"the warehouse {self.storage.uri('')} has no version {version}; the newest one is "
                f"{listing.head}"
            )
        # Nothing is published at 0, so a vacuum removes nothing of it.
        if 0 < version < listing.oldest and not removed:
            raise VersionRemoved(
                f"version {version} of the warehouse {self.storage.uri('')} was removed by a "
                f"vacuum; the oldest one that can be read is {listing.oldest}"
            )
        return self._state_at(version, listing)

    def _state_at(self, version: int, listing: _Listing) -> State:
        """As `state`, of a version that stands in the log."""
        start, state = 0, State()
        for n in listing.snapshots:
            if n <= version and (shortcut := self._snapshot(n)) is not None:
                start, state = n, shortcut
                break
        for n in range(start + 1, version + 1):
            state = fold(state, self.existing_entry(n))
        return state

    def owners(self, version: int, cached: OwnersAt | None = None) -> OwnersAt:
        """Return the owner of each dataset at ``version``. Raises: as ``state``.

        Args:
            cached: the result of an earlier call; if few entries were added since, only these are
                read.
        """
        if cached is None or not 0 <= version - cached.version <= SNAPSHOT_EVERY:
            return OwnersAt(version, owners_of(self.state(version, removed=True)))
        owners = cached.owners
        for n in range(cached.version + 1, version + 1):
            owners = owners_after(owners, self.existing_entry(n))
        return OwnersAt(version, owners)

    def dataset(self, dataset: str, version: int | None = None) -> DatasetState:
        """Return one dataset at one version.

        Raises: DatasetNotFound, with the names of existing ones; as ``state``.
        """
        state = self.state(version)
        if dataset not in state:
            names = ", ".join(sorted(state)) or "nothing yet"
            at = "" if version is None else f" at version {version}"
            raise DatasetNotFound(
                f"the warehouse {self.storage.uri('')} has no dataset {dataset!r}{at}; published "
                f"there: {names}"
            )
        return state[dataset]

    def files_of(self, dataset: str, version: int | None = None) -> DatasetState:
        """As ``dataset``, of one whose rows are in files of the warehouse.

        Raises: DatasetNotFound: also for a table, which the text names; as ``state``.
        """
        state = self.dataset(dataset, version)
        if state.table is not None:
            raise DatasetNotFound(
                f"{dataset} is published as the {state.table.title}, with versions of its own; "
                f"read it there, with {table_format(state.table.format).readers}"
            )
        return state

    def history(
        self, dataset: str, limit: int, newest: int | None = None, looks: int | None = None
    ) -> list[Entry]:
        """Yield the newest ``limit`` entries that changed ``dataset``, newest first.

        Entries are read one after the other.

        Args:
            newest: the version to begin at; None: the newest of the log.
            looks: entries that are read at most; None: all that it takes.

        Raises: LogBroken, WarehouseNewer.
        """
        numbers = range(self.head() if newest is None else newest, 0, -1)
        entries = map(self.existing_entry, islice(numbers, looks))
        return list(islice((entry for entry in entries if dataset in entry.datasets), limit))

    def find_publish(self, publish_id: str, after: int, package_id: str = "") -> int | None:
        """Return the number above ``after`` with ``publish_id``, as a package or an ABORT, or None.

        With a ``package_id``, also that of a package that another job has published for the same
        request.

        Raises:
            LogBroken: an entry is missing or unreadable, or the log ends before ``after`` (restored
                from a backup?): then nobody can say what was published.
        """
        head = self.head()
        if after > head:
            raise LogBroken(
                f"the log at {self.storage.uri('')} ends at version {head}, but {publish_id} began "
                f"at version {after}: the warehouse seems to have been restored from an older copy"
            )
        numbers = range(after + 1, head + 1)
        return next(
            (n for n in numbers if self.existing_entry(n).is_of(publish_id, package_id)), None
        )

    def find_since(
        self,
        matches: Callable[[str, str], bool],
        version: int,
        since: float,
        cached: dict[int, tuple[float, str, str]],
    ) -> tuple[int, str] | None:
        """Return the number and publish id of the newest matching entry, or None.

        Searches the entries up to ``version`` that were written since ``since``.

        Args:
            matches: whether an entry with this publish id and this package id matches.
            since: seconds since the epoch, by the clocks of those who publish.
            cached: number → time, publish id and package id of entries that earlier calls read;
                this call adds to it.

        Raises: LogBroken, WarehouseNewer.
        """
        entries = self.ids_since(version, since, cached)
        return next(
            (
                (n, publish_id)
                for n, publish_id, package_id in entries
                if matches(publish_id, package_id)
            ),
            None,
        )

    def ids_since(
        self, version: int, since: float, cached: dict[int, tuple[float, str, str]]
    ) -> Iterator[tuple[int, str, str]]:
        """Yield number, publish id and package id of entries written since ``since``, newest first.

        Arguments and errors are those of `find_since`. The last entry may be older than ``since``.
        """
        for n in range(version, 0, -1):
            if n not in cached:
                entry = self.existing_entry(n)
                cached[n] = entry.at, entry.publish_id, entry.package_id
            at, publish_id, package_id = cached[n]
            yield n, publish_id, package_id
            if at < since:
                return

    def create_entry(self, n: int, entry: Entry) -> bool:
        """Take the number ``n`` for ``entry``; False if it is taken.

        Raises:
            LogBroken: the number before it is free; a gap can never be made.
            WarehouseUnsupported: the file system cannot create a file only if it is absent.
            OSError, WarehouseMismatch: it is not known who has the number; read it.
        """
        if n < 1 or entry.n != n or entry.parent != n - 1:
            raise ValueError(
                f"entry {entry.n} with parent {entry.parent} cannot have the number {n}"
            )
        if n > 1 and self.storage.size(_entry_path(n - 1)) is None:
            raise LogBroken(
                f"number {n} of the log at {self.storage.uri('')} cannot be taken: {n - 1} is free"
            )
        body = _ENTRY.dump_python(entry, mode="json")
        return self.storage.create(_entry_path(n), json.dumps(body, ensure_ascii=False).encode())

    def tables_written(self, n: int) -> bool:
        """Return whether all tables of entry ``n`` are known to have their commit.

        Raises: OSError.
        """
        return self.storage.size(_tables_path(n)) is not None

    def note_tables_written(self, n: int) -> None:
        """Record that all tables of entry ``n`` have their commit.

        Raises: as ``create_entry``.
        """
        self.storage.create(_tables_path(n), b"{}")

    def append(
        self, publish_id: str, after: int, make: Callable[[int, State], Entry], package_id: str = ""
    ) -> tuple[Entry, bool]:
        """Return the only entry of ``publish_id``, and create it if there is none.

        It is an entry above ``after``, or else ``make(n, state at n - 1)``.

        Every number above ``after`` is read, in order, up to the first free one, and that one is
        tried. So of however many callers with one publish id (a repeat, a zombie, a publisher
        against a canceler) the first to create wins
        and all others find its entry: nobody can pass a number without having read it. ``after``
        must lie below any entry of this publish id.

        Args:
            package_id: a package that has it stands for the entry, too; see `Entry.package_id`.

        Returns:
            The entry that stands, and whether this call created it.

        Raises:
            LogBroken, WarehouseNewer, WarehouseUnsupported, WarehouseMismatch, OSError: as
                ``create_entry`` and ``find_publish``; the outcome is unknown, and repeating the
                call is safe.
        """
        head = self.head()
        existing = self.find_publish(publish_id, after, package_id)
        if existing is not None:
            rewrite_kept_views(self)  # who created it may have died before
            return self.existing_entry(existing), False
        n, state = head + 1, self._state_at(head, self._listing())
        while True:
            entry = make(n, state)
            reach(Point.BEFORE_ENTRY, entry.job)
            if self.create_entry(n, entry):
                reach(Point.AFTER_ENTRY, entry.job)
                self._snapshot_if_due(n)
                rewrite_kept_views(self)
                return entry, True
            winner = self.existing_entry(n)
            if winner.is_of(publish_id, package_id):
                return winner, False
            n, state = n + 1, fold(state, winner)

    def write_snapshot(self, n: int) -> None:
        """Store the state at version ``n``, so that readers can skip the entries up to it.

        Raises: as ``state``.
        """
        datasets = _STATE.dump_python(self._state_at(n, self._listing()), mode="json")
        body = {"version": ENTRY_VERSION, "n": n, "datasets": datasets}
        self.storage.write_durable(
            _snapshot_path(n), json.dumps({**body, "sha256": _digest(body)}).encode()
        )

    def _snapshot_if_due(self, n: int) -> None:
        """Write the newest snapshot that is due at ``n`` and missing.

        Its author may have died before it.
        """
        due = n - n % SNAPSHOT_EVERY
        try:
            if due and self.storage.size(_snapshot_path(due)) is None:
                self.write_snapshot(due)
        except (OSError, WarehouseMismatch) as error:
            # Entry n stands, and that is the publish. The next one tries again.
            log.warning(
                "Snapshot %d of the log at %s could not be written: %s",
                due,
                self.storage.uri(""),
                error,
            )

    def _snapshot(self, n: int) -> State | None:
        """The state in snapshot ``n``; None if there is any doubt about it."""
        try:
            body = json.loads(self.storage.read(_snapshot_path(n)))
            if (
                body.pop("sha256") == _digest(body)
                and body["n"] == n
                and body["version"] <= ENTRY_VERSION
            ):
                return _STATE.validate_python(body["datasets"])
            doubt = "it is damaged or of a later release"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            doubt = str(error)
        log.warning(
            "Snapshot %d of the log at %s is passed over: %s", n, self.storage.uri(""), doubt
        )
        return None


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _entry_path(n: int) -> str:
    return f"{_LOG}/{n:012d}.json"


def _tables_path(n: int) -> str:
    return f"{_LOG}/{n:012d}.tables.json"


def _snapshot_path(n: int) -> str:
    return f"{_LOG}/{n:012d}.snapshot.json"
