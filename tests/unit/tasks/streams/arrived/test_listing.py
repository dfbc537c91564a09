"""The files that have arrived for a stream: which count, under which names, and what is told of the
others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.network.s3_server import S3Server
from unstuck.tasks.errors import FileChanged, FileNameInvalid, SourceUnavailable
from unstuck.tasks.spec.inputs import StreamInput
from unstuck.tasks.streams.arrived.listing import arrivals, listing, some_names
from unstuck.tasks.streams.read.files_read import read_files
from unstuck.tasks.warehouse.files import Files


def stream_of(place: Path | str, **more: Any) -> StreamInput:
    return StreamInput(stream=str(place), format="json", schema="id BIGINT", **more)


def arrive(folder: Path, *names: str, text: str = "{}") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names_in(folder: Path, stream: StreamInput | None = None) -> list[str]:
    found = listing(stream or stream_of(folder)).files
    return sorted(path.removeprefix(f"{folder}/") for path in found)


@pytest.mark.parametrize(
    "spelled", ["{}", "{}/", "/.{}", "/{}", "file://{}", "file:{}", "file://{}/."]
)
def test_one_place_is_one_stream_in_any_spelling(spelled: str) -> None:
    spelled = spelled.format("/in/events")
    if spelled.startswith("file:/in"):
        spelled = spelled.replace("file:/in", "file:///in")
    assert stream_of(spelled).stream == "/in/events"
    assert stream_of("s3://bucket//in/./x/").stream == "s3://bucket/in/x"
    assert stream_of("/in/a://b").stream == "/in/a:/b", "a colon is a letter"


UNFINISHED = [
    "part",
    "partial",
    "filepart",
    "tmp",
    "inprogress",
    "_COPYING_",
    "crdownload",
    "swp",
    "bak",
    "x7Kq2",
]


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("csv", ["a.csv", "A.CSV", "a.tsv", "a.csv.gz", "a.csv.zst", "a.csv.zip"]),
        ("json", ["a.json", "a.jsonl", "a.ndjson.bz2"]),
        ("text", ["a.txt", "a.log.lz4"]),
        ("parquet", ["a.parquet", "a.snappy.parquet"]),
        ("orc", ["a.orc"]),
    ],
)
def test_a_file_counts_if_its_name_has_an_extension_of_its_format(
    tmp_path: Path, form: str, names: list[str]
) -> None:
    def counted() -> list[str]:
        return names_in(
            tmp_path, StreamInput(stream=str(tmp_path), format=form, schema="id STRING")
        )

    unfinished = [f"{name}.{ending}" for name in names for ending in UNFINISHED] + [
        f"{name}~" for name in names
    ]
    arrive(tmp_path, *unfinished)
    assert counted() == []
    for name in names:
        (tmp_path / f"{name}.filepart").rename(tmp_path / name)
    assert counted() == sorted(names)


def test_files_that_do_not_count_are_listed_as_ignored(tmp_path: Path) -> None:
    arrive(
        tmp_path,
        "b.json",
        "c.json.part",
        "d.dat",
        "_SUCCESS",
        ".e.json",
        "~$i.json",
        "_tmp/f.json",
        "sub/g.json",
        "sub/h.csv",
    )
    found = listing(stream_of(tmp_path))
    assert sorted(Path(path).name for path in found.files) == ["b.json", "g.json"]
    assert some_names(found.ignored) == "6 (c.json.part, d.dat, h.csv, …)"
    assert arrivals(stream_of(tmp_path), {}).ignored == found.ignored


def test_a_stream_may_select_files_by_name(tmp_path: Path) -> None:
    arrive(tmp_path, "part-0", "part-1._COPYING_", "part-2.tmp", "a.dat", "b.json", "sub/c.dat")
    assert names_in(tmp_path, stream_of(tmp_path, files=["part-*", "*.dat"])) == [
        "a.dat",
        "part-0",
        "sub/c.dat",
    ]
    by_address = stream_of(f"{tmp_path}/*.dat")
    assert names_in(tmp_path, by_address) == ["a.dat"], "the address names the ending of its files"
    every = stream_of(tmp_path, files=["*"], ignore=["sub"])
    assert names_in(tmp_path, every) == [
        "a.dat",
        "b.json",
        "part-0",
        "part-1._COPYING_",
        "part-2.tmp",
    ]


@pytest.mark.parametrize("name", ["land [x] {y}", "{a,b}"])
def test_a_folder_whose_name_is_a_pattern_does_not_match_others(tmp_path: Path, name: str) -> None:
    """The stream would read `land x y`, or nothing, and say nothing."""
    arrive(tmp_path, f"{name}/mine.json", "land x y/other.json", "a/other.json")
    with pytest.raises(FileNameInvalid, match=r"Write \? for each"):
        listing(stream_of(tmp_path / name))
    assert names_in(tmp_path, stream_of(tmp_path / re.sub(r"[][{},]", "?", name))) == [
        f"{name}/mine.json"
    ]
    arrive(tmp_path, "a[b/never_closed.json")
    assert names_in(tmp_path, stream_of(tmp_path / "a[b")) == ["a[b/never_closed.json"]


def test_every_character_of_a_file_name_is_literal(tmp_path: Path) -> None:
    nfc, nfd = (unicodedata.normalize(form, "über.json") for form in ("NFC", "NFD"))
    names = [
        "a:b.json",
        "[ab].json",
        "{a,b}.json",
        "*.json",
        "a?.json",
        "a\\b.json",
        "a b.json",
        "100%.json",
        nfc,
        nfd,
    ]
    arrive(tmp_path, *names)
    assert sorted(names_in(tmp_path)) == sorted(names)


def test_a_name_with_invalid_utf8_is_refused_with_its_bytes(tmp_path: Path) -> None:
    (bad := os.fsencode(tmp_path) + b"/caf\xe9.json.part")
    Path(os.fsdecode(bad)).write_text("{}")
    assert names_in(tmp_path) == []
    os.rename(bad, bad.removesuffix(b".part"))
    with pytest.raises(
        FileNameInvalid,
        match=r"is no UTF-8: b'.*/caf\\xe9\.json'.*mv \$'.*/caf\\xe9\.json' NEWNAME",
    ):
        listing(stream_of(tmp_path))


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1"])
def test_the_locale_of_the_process_changes_no_name(tmp_path: Path, locale: str) -> None:
    arrive(tmp_path, "über.json")
    code = (
        "import sys; from unstuck.tasks.spec.inputs import StreamInput;"
        "from unstuck.tasks.streams.arrived.listing import listing;"
        "(f,) = listing(StreamInput(stream=sys.argv[1], format='json', schema='id INT')).files;"
        "sys.stdout.buffer.write(f.encode())"
    )
    environ = {**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environ, capture_output=True, check=True
    )
    assert told.stdout.decode() == f"{tmp_path}/über.json"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json", ["a.json", "b1.json"]),
        ("b[0-9].json", ["b1.json"]),
        ("{a,b1}.json", ["a.json", "b1.json"]),
        ("2026-*", ["2026-01/x/d.json", "2026-02/e.json"]),
        ("2026-*/*.json", ["2026-02/e.json"]),
        ("*.xml", []),
    ],
)
def test_a_pattern_matches_files_and_folders_level_by_level(
    tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    arrive(tmp_path, "a.json", "b1.json", "c.csv", "2026-01/x/d.json", "2026-02/e.json")
    assert names_in(tmp_path, stream_of(f"{tmp_path}/{pattern}")) == expected


def test_a_link_to_a_parent_folder_is_followed_once(tmp_path: Path) -> None:
    arrive(tmp_path, "sub/a.json")
    (tmp_path / "sub" / "round").symlink_to(tmp_path)
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    assert "sub/a.json" in names_in(tmp_path)
    assert len(names_in(tmp_path)) <= 2


def test_an_unreadable_folder_is_an_error_with_its_path_and_an_empty_one_is_not(
    tmp_path: Path,
) -> None:
    assert arrivals(stream_of(tmp_path), {}).looked == 0
    with pytest.raises(
        SourceUnavailable, match=rf"cannot read {tmp_path}/gone: No such file or directory"
    ):
        listing(stream_of(tmp_path / "gone"))
    with pytest.raises(
        SourceUnavailable, match=rf"cannot read {tmp_path}/gone: No such file or directory"
    ):
        listing(stream_of(tmp_path / "gone" / "*.json"))
    arrive(tmp_path, "file")
    with pytest.raises(SourceUnavailable, match="Not a directory"):
        listing(stream_of(tmp_path / "file"))


def test_a_subfolder_that_denies_access_stops_the_stream_with_its_path(guest: Path) -> None:
    arrive(guest, "open/a.json", "closed/b.json")
    (guest / "closed").chmod(0)
    try:
        with pytest.raises(
            SourceUnavailable, match=rf"cannot read {guest}/closed, below {guest}: Permission"
        ):
            listing(stream_of(guest))
    finally:
        (guest / "closed").chmod(0o755)


def test_a_file_with_a_new_path_is_new_even_if_its_name_sorts_earlier(
    tmp_path: Path,
) -> None:
    arrive(tmp_path, "b.json", "c.json")
    before = listing(stream_of(tmp_path)).files
    arrive(tmp_path, "a.json")
    (tmp_path / "c.json").rename(tmp_path / "d.json")
    found = arrivals(stream_of(tmp_path), before)
    assert [Path(file.path).name for file in found.new] == ["d.json", "a.json"], (
        "the one written first"
    )
    assert (found.looked, found.changed) == (3, [])


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_with_changed_content_is_reported_reread_or_skipped_as_configured(
    tmp_path: Path, same_size: bool
) -> None:
    arrive(tmp_path, "a.json", "b.json")
    before = listing(stream_of(tmp_path)).files
    arrive(tmp_path, "a.json", text="[]" if same_size else "[1, 2]")
    os.utime(tmp_path / "a.json", ns=(1, 1))
    arrive(tmp_path, "c.json")
    with pytest.raises(
        FileChanged, match=rf"{tmp_path}/a.json \(read with 2 bytes, has .* changed: again"
    ):
        arrivals(stream_of(tmp_path), before)
    again = arrivals(stream_of(tmp_path, changed="again"), before)
    assert [Path(file.path).name for file in again.new] == ["a.json", "c.json"]
    ignored = arrivals(stream_of(tmp_path, changed="ignore"), before)
    assert [Path(file.path).name for file in ignored.new] == ["c.json"]
    assert [Path(file.path).name for file in ignored.changed] == ["a.json"]


def test_objects_are_identified_by_their_etag() -> None:
    place = "memory://landing-by-etag"
    files = Files(place)
    for path in (
        "in/a.json",
        "in/2026/b.json",
        "in/_c.json",
        "in/d.json.part",
        "index/e.json",
        "in/empty.json",
    ):
        files.write_durable(path, b"" if "empty" in path else b"{}")
    stream = stream_of("s3://bucket/in").model_copy(update={"stream": f"{place}/in"})
    before = listing(stream).files
    assert sorted(path.removeprefix(f"{place}/in/") for path in before) == [
        "2026/b.json",
        "a.json",
        "empty.json",
    ]
    files.write_durable("in/a.json", b"[]")
    with pytest.raises(FileChanged, match=r"in/a\.json"):
        arrivals(stream, before)


TREE = [
    *(
        "a.json",
        "b1.json",
        "b1.csv",
        "c.csv",
        "_SUCCESS",
        ".hidden.json",
        "d.json.tmp",
        "old/i.json",
        "x/old/j.json",
    ),
    *("2026-01/x/d.csv", "2026-01/x/k.json", "2026-02/e.json", "2026-02/old.json"),
    *(
        "_temporary/0/f.json",
        "2026-01/_temporary/0/g.json",
        ".staging/h.json",
        "2026-02/.staging/e.json",
    ),
]


@pytest.mark.parametrize("ignore", [["*.tmp"], ["*.tmp", "old*"], []])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", None),
        ("/*.json", ["a.json", "b1.json"]),
        ("/{a,b1}.{json,csv}", ["a.json", "b1.csv", "b1.json"]),
        ("/2026-*", ["2026-01/x/k.json", "2026-02/e.json", "2026-02/old.json"]),
        ("/2026-0[12]/*/*.json", ["2026-01/x/k.json"]),
        ("/*/_temporary", []),
    ],
)
def test_a_bucket_is_listed_like_a_folder(
    tmp_path: Path, pattern: str, expected: list[str] | None, ignore: list[str]
) -> None:
    """The same names count in both, so files below a hidden or ignored folder of a bucket are not
    read either.
    """
    arrive(tmp_path, *TREE)
    bucket = f"memory://{uuid.uuid4().hex}"
    for name in TREE:
        Files(bucket).write_durable(f"in/{name}", b"{}")
    local = listing(stream_of(f"{tmp_path}{pattern}", ignore=ignore))
    stored = listing(
        stream_of("/in", ignore=ignore).model_copy(update={"stream": f"{bucket}/in{pattern}"})
    )
    found = sorted(path.removeprefix(f"{tmp_path}/") for path in local.files)
    assert found == sorted(path.removeprefix(f"{bucket}/in/") for path in stored.files)
    ignored = sorted(path.removeprefix(f"{tmp_path}/") for path in local.ignored)
    assert ignored == sorted(path.removeprefix(f"{bucket}/in/") for path in stored.ignored)
    assert not any("_temporary" in name or ".staging" in name for name in found)
    if expected is not None:
        assert found == [name for name in expected if "old" not in name or "old*" not in ignore]


def test_the_oldest_object_is_read_first_for_any_name() -> None:
    place = f"memory://{uuid.uuid4().hex}"
    files, stream = Files(place), stream_of("/in").model_copy(update={"stream": f"{place}/in"})
    files.write_durable("in/b.json", b"{}")
    written = arrivals(stream, {}).new[0].written
    assert written is not None
    while (files.write_durable("in/a.json", b"{}"), listing(stream).stored[f"{place}/in/a.json"])[
        1
    ] <= written:
        pass  # the clock of the store has not moved on
    assert [Path(file.path).name for file in arrivals(stream, {}).new] == ["b.json", "a.json"]


def test_files_written_at_the_same_time_are_read_in_path_order(
    tmp_path: Path,
) -> None:
    names = [f"{number * 7 % 40:02}.json" for number in range(40)]
    arrive(tmp_path, *names)
    for name in names:
        os.utime(tmp_path / name, ns=(10**18, 10**18))
    assert [Path(file.path).name for file in arrivals(stream_of(tmp_path), {}).new] == sorted(names)


def test_coordinators_can_list_without_spark_and_arrow() -> None:
    heavy = ("pyspark", "pyarrow", "pandas")
    code = (
        f"import sys, unstuck.tasks.streams.arrived.listing; print([name for name in {heavy} "
        "if "
        "name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert told.stdout.strip() == "[]"


def test_every_character_of_an_object_name_is_literal(bucket: str, s3_server: S3Server) -> None:
    names = [
        "a:b.json",
        "[ab].json",
        "{a,b}.json",
        "*.json",
        "a\\b.json",
        "a b.json",
        "100%.json",
        "a%20b.json",
    ]
    names += ["über.json", "a#b.json", "a?b.json", "~.json"]
    for number, name in enumerate(names):
        body = json.dumps({"id": number}).encode()
        s3_server.client("s3").put_object(
            Bucket=bucket.removeprefix("s3://"), Key=f"in/{name}", Body=body
        )
    stream = stream_of(f"{bucket}/in")
    new = arrivals(stream, {}).new
    assert sorted(file.path.removeprefix(f"{bucket}/in/") for file in new) == sorted(names)
    read = read_files(None, new, stream, Files("memory://not-used"), "none")
    rows = {
        names.index(path.removeprefix(f"{bucket}/in/")): rows for path, rows in read.rows.items()
    }
    assert (rows, sorted(read.frame["id"].to_pylist())) == (
        dict.fromkeys(range(len(names)), 1),
        [*range(len(names))],
    )
