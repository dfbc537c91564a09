"""Which staging folders jobs still need, as a worker and a coordinator ask it of Redis."""

from __future__ import annotations

import json

import pytest
import redis

from unstuck.tasks.protocol.keys import Keys
from unstuck.tasks.protocol.staging import Staging

KEYS = Keys()
FOLDER = "_staging/first/load/1-nonce-claimant"
SUCCEEDED = json.dumps({"state": "SUCCEEDED", "staging": FOLDER})


def retried(client: redis.Redis, record: str, *, is_open: bool) -> Staging:
    """``first`` was retried as ``second``, and that as ``third``, whose one group has this
    record.
    """
    client.hset(KEYS.retries, mapping={"second": "first", "third": "second"})
    client.hset(KEYS.of("third").groups, "load", record)
    client.hset(KEYS.of("first").job, "status", "FAILED")
    client.hset(KEYS.of("other").job, "status", "FINISHED")
    if is_open:
        client.zadd(KEYS.due, {"third": 1.0})
    return Staging(client, KEYS)


def test_an_ended_retry_keeps_its_valid_folders(client: redis.Redis) -> None:
    staging = retried(client, SUCCEEDED, is_open=False)
    assert staging.retries().folders == {FOLDER}
    assert staging.retries().of == set()


def test_an_open_retry_keeps_all_folders_of_jobs_it_may_adopt_from(
    client: redis.Redis,
) -> None:
    assert retried(client, "{}", is_open=True).retries().of == {"first", "second"}


@pytest.mark.parametrize("damaged", ["", "{", "[]", "null", "1", "[" * 100_000])
def test_a_damaged_record_keeps_all_folders(client: redis.Redis, damaged: str) -> None:
    assert retried(client, damaged, is_open=False).retries().of == {"first", "second"}


def test_a_file_is_needed_while_its_job_can_be_retried_or_its_folder_is_valid(
    client: redis.Redis,
) -> None:
    needed = retried(
        client, json.dumps({"staging": "_staging/other/load/1-n-c"}), is_open=False
    ).needed()
    assert needed(f"{FOLDER}/flights/part-0.parquet"), "a job that has failed may be retried"
    assert needed("_staging/other/load/1-n-c/flights/part-0.parquet"), "it counts in a retry"
    assert not needed("_staging/other/load/2-n-c/flights/part-0.parquet"), "its job has finished"
    assert not needed("_staging/gone/load/1-n-c/flights/part-0.parquet"), (
        "nobody knows its job any more"
    )
