"""What may be removed of a job's staging: pure, on names alone."""

from __future__ import annotations

import random

import pytest

from unstuck.coordinator.publishing.staging_gc import (
    Kept,
    expired_staging,
    folder_of,
    named_by,
    owner,
    stale_attempts,
)
from unstuck.tasks.warehouse.log_entry import Change, Entry
from unstuck.tasks.warehouse.marker import DataFile

LISTING = {
    "clean": ["1-n-a", "2-m-b", ".2-m-b.x.tmp", "notes"],
    "job.logs": [
        "clean.1-n-a.log",
        "clean.2-m-b.log",
        ".clean.2-m-b.log.x.tmp",
        "month.0.1-n-c.log",
    ],
    "month.0": ["1-n-c"],
}


def test_useless_attempts_are_removed_and_logs_and_foreign_files_stay() -> None:
    kept = Kept(["_staging/j/clean/2-m-b"])
    assert stale_attempts("j", LISTING, kept) == [
        "_staging/j/clean/1-n-a",
        "_staging/j/month.0/1-n-c",
    ]


def test_a_folder_with_one_needed_file_stays() -> None:
    kept = Kept(["_staging/j/clean/1-n-a/out/part-0.parquet", "_staging/j/month.0"])
    assert stale_attempts("j", LISTING, kept) == ["_staging/j/clean/2-m-b"]


def test_an_unreferenced_job_is_removed_completely_after_its_retention() -> None:
    assert expired_staging(
        "j", LISTING, Kept(["_staging/jj/clean/1-n-a", "_staging/other/clean/1-n-a"])
    ) == ["_staging/j"]
    assert expired_staging("j", {}, Kept([])) == []


def test_only_files_referenced_by_the_log_survive_the_retention() -> None:
    kept = Kept(["_staging/j/clean/2-m-b"])
    gone = [f"_staging/j/clean/{name}" for name in LISTING["clean"] if name != "2-m-b"]
    assert expired_staging("j", LISTING, kept) == [
        *gone,
        "_staging/j/job.logs",
        "_staging/j/month.0",
    ]


def test_an_entry_references_the_folders_of_its_files_and_tokens() -> None:
    added = [DataFile(f"_staging/j/clean/1-n-a/out/part-{n}.parquet", 1, 1) for n in range(2)]
    adopted = DataFile("_staging/older/clean/1-n-z/out/part-0.parquet", 1, 1)
    outside = DataFile("imported/part-0.parquet", 1, 1)
    change = Change(
        "replace", [*added, adopted, outside], ["_staging/gone/clean/1-n-q/part-0.parquet"], 3, "{}"
    )
    entry = Entry(
        1, 0, "j", "package", "j", "job", 1.0, {}, {"out": change}, ["_staging/j/empty/1-n-b"]
    )
    assert named_by(entry) == {
        "_staging/j/clean/1-n-a",
        "_staging/older/clean/1-n-z",
        "_staging/j/empty/1-n-b",
        "imported/part-0.parquet",
    }
    assert owner("_staging/older/clean/1-n-z") == "older"
    assert owner("imported/part-0.parquet") is None


@pytest.mark.parametrize("job", ["", ".", "..", "a/b", "*"])
def test_an_invalid_job_id_has_no_folder(job: str) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        folder_of(job)


def test_removals_never_touch_kept_files_or_another_job() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        names = [f"{n}-n-{c}{end}" for n in (1, 2) for c in "ab" for end in ("", ".log")]
        listing = {
            group: rng.sample(names, rng.randint(0, 8))
            for group in rng.sample(["a", "b", "b.0", "c"], 3)
        }
        paths = [f"_staging/j/{group}/{name}" for group, found in listing.items() for name in found]
        kept = [
            path + rng.choice(("", "/out/part-0.parquet")) for path in paths if rng.random() < 0.4
        ]
        for removed in (
            stale_attempts("j", listing, Kept(kept)),
            expired_staging("j", listing, Kept(kept)),
        ):
            for path in removed:
                assert path == "_staging/j" or path.startswith("_staging/j/")
                assert not [
                    k
                    for k in kept
                    if f"{k}/".startswith(f"{path}/") or f"{path}/".startswith(f"{k}/")
                ], seed
        left = {
            path
            for path in paths
            if not any(
                f"{path}/".startswith(f"{gone}/")
                for gone in expired_staging("j", listing, Kept(kept))
            )
        }
        assert left == {"/".join(path.split("/")[:4]) for path in kept}, (
            f"seed {seed}: what nobody needs is gone"
        )
