"""Restore: an older version stands again, once; jobs and vacuums that come between are seen, and
nothing is undone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import redis

from tests.support.failpoints import Died, Once, armed
from tests.support.tables.delta_lake import DeltaLake
from tests.support.tables.lake import row
from tests.unit.coordinator.publishing.test_modes import APPEND, BY_DAY, Nightly
from tests.unit.coordinator.publishing.test_publish_outputs import FLIGHTS, schema
from tests.unit.coordinator.publishing.test_vacuum import clean
from unstuck import DatasetNotFound
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.publishing.restore import Restored, restore
from unstuck.coordinator.publishing.vacuum import Vacuumed
from unstuck.coordinator.store.staging_index import StagingIndex
from unstuck.tasks.failpoints import Point
from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.spec.outputs import OutputSpec
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.marker import Checkpoint


class Restorer(Nightly):
    """A dataset that two jobs have published, by days; the second one has replaced the second day
    by fewer rows.
    """

    index: StagingIndex

    def restore(self, version: int, reason: str = "") -> Restored:
        return restore(
            Warehouse(self.root), self.index, "flights", version, by="anna@host", reason=reason
        )

    def vacuum(self, keep: int = 1) -> Vacuumed:
        known = Warehouse(self.root).ensure_id()
        reading = partial(self.index.oldest_read, known)
        return clean(self, keep, reading=reading, counted=partial(self.index.count_vacuum, known))

    @property
    def there(self) -> list[str]:
        """For each file in the warehouse the job that made it."""
        return sorted(path.parts[-5] for path in Path(self.root).rglob("*.parquet"))

    @property
    def stands(self) -> tuple[int, int]:
        """The version and the rows of the dataset."""
        found = Warehouse(self.root).dataset("flights")
        return found.changed, found.rows


@pytest.fixture
def nightly(tmp_path: Path, client: redis.Redis) -> Restorer:
    nightly = Restorer(str(tmp_path / "warehouse"))
    nightly.index = StagingIndex(client, Keys())
    nightly.publish("one", BY_DAY, "2013-01-01", "2013-01-02", rows=9)
    nightly.publish("two", BY_DAY, "2013-01-02", "2013-01-03", rows=4)
    return nightly


def test_restoring_an_older_version_keeps_the_versions_between_readable(
    nightly: Restorer,
) -> None:
    done = nightly.restore(1, "the second day was cut short")

    assert (done.version, done.new, done.rows, done.files) == (3, True, 18, 2)
    assert done.replaced is not None
    assert done.replaced.text() == "day=2013-01-03: 4 → 0 rows, day=2013-01-02: 4 → 9 rows"
    assert sorted(nightly.files) == ["one 2013-01-01", "one 2013-01-02"]
    assert Warehouse(nightly.root).dataset("flights", version=2).rows == 17
    entry = Warehouse(nightly.root).history("flights", 1)[0]
    assert (entry.job_name, entry.params) == (
        "restore of version 1 by anna@host",
        {"version": 1, "reason": "the second day was cut short"},
    )
    nightly.publish("three", BY_DAY, "2013-01-02", rows=5)
    assert nightly.stands == (4, 14)


def test_a_restored_version_has_its_own_columns(nightly: Restorer) -> None:
    nightly.publish("three", OutputSpec(), columns=schema("other:string"))
    nightly.restore(2)
    assert Warehouse(nightly.root).dataset("flights").schema == FLIGHTS
    assert nightly.publish("four", BY_DAY, "2013-01-04").failed is None, (
        "what has these columns goes on"
    )
    nightly.restore(3)
    assert Warehouse(nightly.root).dataset("flights").schema == schema("other:string")


def test_a_dataset_in_the_requested_state_is_left_unchanged(nightly: Restorer) -> None:
    assert nightly.restore(2) == Restored("flights", 2, False, 17, 3)
    nightly.restore(1)
    assert nightly.restore(1) == Restored("flights", 3, False, 18, 2)
    assert nightly.restore(2).version == 4
    assert nightly.stands == (4, 17)


@pytest.mark.parametrize("point", [Point.BEFORE_ENTRY, Point.AFTER_ENTRY])
def test_a_repeated_restore_after_a_crash_takes_effect_once(
    nightly: Restorer, point: Point
) -> None:
    def die() -> None:
        raise Died

    with armed(Once(die, [point])), pytest.raises(Died):
        nightly.restore(1)
    assert nightly.restore(1).version == 3
    assert (nightly.stands, Warehouse(nightly.root).head()) == ((3, 18), 3)


def test_two_concurrent_restores_create_one_version(nightly: Restorer) -> None:
    with armed(Once(lambda: nightly.restore(1), [Point.BEFORE_ENTRY])):
        assert (nightly.restore(1).new, Warehouse(nightly.root).head()) == (False, 3)


def test_a_concurrent_publish_is_not_undone_by_a_restore(nightly: Restorer) -> None:
    with (
        armed(Once(lambda: nightly.publish("three", BY_DAY, "2013-01-04"), [Point.BEFORE_ENTRY])),
        pytest.raises(
            Refused, match=r"job three \(flights\) has published it as version 3 meanwhile"
        ),
    ):
        nightly.restore(1)
    assert nightly.stands == (3, 20)


def test_another_dataset_may_be_published_during_a_restore(nightly: Restorer) -> None:
    other = Nightly(nightly.root)
    with armed(
        Once(lambda: other.publish("three", OutputSpec(), dataset="others"), [Point.BEFORE_ENTRY])
    ):
        assert nightly.restore(1).version == 4


@pytest.mark.parametrize("meanwhile", [False, True], ids=["later", "meanwhile"])
def test_a_vacuum_removes_nothing_that_is_being_restored(
    nightly: Restorer, meanwhile: bool
) -> None:
    """Not one that comes between the look at the files and the entry, and not a later one."""
    if meanwhile:
        with armed(Once(nightly.vacuum, [Point.BEFORE_ENTRY])):
            nightly.restore(1)
        assert nightly.there == ["one", "one", "two", "two"]
    else:
        nightly.restore(1)
    nightly.publish("three", OutputSpec(), dataset="others")
    nightly.vacuum()

    assert nightly.there == ["one", "one", "three"], "what only the versions between had is gone"


def test_a_version_removed_by_a_vacuum_is_refused_with_its_files(nightly: Restorer) -> None:
    nightly.vacuum()
    with pytest.raises(
        Refused,
        match=r"the oldest one that can be read is 2. 1 of its 2 files are gone: _staging/one",
    ):
        nightly.restore(1)

    Path(nightly.root, "_staging/two/load/1-nonce-claimant/flights/part-1.parquet").unlink()
    nightly.publish("three", OutputSpec(), "2013-01-03")
    with pytest.raises(
        Refused, match=r"somebody outside has removed files .* gone: _staging/two/.*part-1.parquet"
    ):
        nightly.restore(2)
    assert nightly.stands == (3, 3)


def test_a_hold_of_a_dead_restore_expires(nightly: Restorer) -> None:
    known = Warehouse(nightly.root).ensure_id()
    with (
        nightly.index.hold("later", known, 1, until=2e9),
        nightly.index.hold("died", known, 1, until=1.0),
    ):
        assert nightly.index.oldest_read(known, 0) == (1, "later")
        assert nightly.index.oldest_read("another", 0) is None
    assert nightly.index.oldest_read(known, 0) is None


def test_a_version_of_another_dataset_is_refused(nightly: Restorer) -> None:
    nightly.publish("three", OutputSpec(), dataset="others")
    with pytest.raises(DatasetNotFound, match="no version 9"):
        nightly.restore(9)
    with pytest.raises(DatasetNotFound, match="no dataset 'others' at version 2"):
        restore(Warehouse(nightly.root), nightly.index, "others", 2, by="anna")


def test_a_delta_table_is_restored_in_its_own_log(tmp_path: Path, client: redis.Redis) -> None:
    lake = DeltaLake(str(tmp_path / "warehouse"), str(tmp_path / "lake/flights"))
    for job, id_ in (("one", 1), ("two", 2)):
        lake.publish(job, lake.spec("replace"), [row(id_)])
    with pytest.raises(
        Refused, match=r"is the Delta table .*/lake/flights, .* Restore it there: RESTORE TABLE"
    ):
        restore(Warehouse(lake.root), StagingIndex(client, Keys()), "flights", 1, by="anna")


def test_a_restored_stream_continues_at_its_old_position(nightly: Restorer) -> None:
    standing = Checkpoint("_staging/three/load.checkpoint", 1, "/landing", 1, "")
    Warehouse(nightly.root).storage.write_durable(standing.path, b"x")
    nightly.publish("three", APPEND, dataset="events", checkpoint=standing)
    nightly.publish("four", OutputSpec(), dataset="events", base=3)

    done = restore(Warehouse(nightly.root), nightly.index, "events", 3, by="anna")
    assert done.stream == "/landing"
    assert Warehouse(nightly.root).dataset("events").checkpoint == standing


def test_a_version_of_thirty_files_replaces_one_of_forty(nightly: Restorer) -> None:
    nightly.publish("thirty", OutputSpec(), *(f"2013-01-{n:02d}" for n in range(1, 31)), rows=1)
    nightly.publish("forty", OutputSpec(), *(f"2014-01-{n:02d}" for n in range(1, 41)), rows=1)
    assert nightly.stands == (4, 40)
    assert nightly.restore(3).files == 30
    assert nightly.stands == (5, 30)
