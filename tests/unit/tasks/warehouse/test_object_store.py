"""A warehouse on S3, against a server of the tests: one winner, and errors that say what is wrong
and no secret.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.network.s3_server import KEY, SECRET, S3Server
from unstuck.coordinator.errors import Refused
from unstuck.coordinator.publishing.streams.skip_file import skip_file
from unstuck.doctor.host_facts import lacks_connector, warehouse_facts
from unstuck.tasks.errors import SourceUnavailable, WarehouseMismatch, WarehouseUnsupported
from unstuck.tasks.frames.output import stage
from unstuck.tasks.settings import Settings
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log import Warehouse
from unstuck.tasks.warehouse.log_entry import Entry
from unstuck.tasks.warehouse.marker import Marker, find_done_marker, write_marker


def entry(n: int, publish_id: str) -> Entry:
    return Entry(n, n - 1, publish_id, "package", publish_id, "job", 0.0)


def test_the_server_refuses_a_second_conditional_write(bucket: str) -> None:
    """The control: what else is tested here proves nothing without it."""
    import obstore
    from obstore.store import from_url

    store = from_url(bucket)
    obstore.put(store, "x", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError, match="412"):
        obstore.put(store, "x", b"2", mode="create")


def test_an_id_or_entry_whose_reply_was_lost_is_recognized_as_own(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library sends a request again whose reply was lost, and then hears that the object
    stands.
    """
    create = Files.create

    def reply_lost(files: Files, path: str, data: bytes) -> bool:
        assert create(files, path, data)
        return create(files, path, data)

    monkeypatch.setattr(Files, "create", reply_lost)
    warehouse = Warehouse(f"{bucket}/w")
    assert warehouse.ensure_id() == warehouse.identity()
    standing, mine = warehouse.append("job-1", 0, lambda n, _: entry(n, "job-1"))
    assert (standing.n, standing.publish_id, mine) == (1, "job-1", False)
    assert warehouse.append("job-1", 0, lambda n, _: entry(n, "job-1"))[0] == standing
    assert warehouse.head() == 1


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_a_staged_table_is_read_back_and_found_again(bucket: str, partition_by: list[str]) -> None:
    files = Files(f"{bucket}/w")
    table = pa.table({"day": ["a", "b", "b"], "n": [1, 2, 3]})
    folder = "_staging/j/g/1-n-c"
    staged = stage(files, f"{folder}/out", table, partition_by)
    assert [file.partition for file in staged.files] == (
        [{"day": "a"}, {"day": "b"}] if partition_by else [{}]
    )
    with files.open(staged.files[0].path) as file:
        assert pq.ParquetFile(file).read().slice(0, 1).to_pylist() == [{"day": "a", "n": 1}]
    write_marker(files, folder, Marker("j/g/1/n/c", "print", {"out": staged}, {}, {}, 0.0))
    found = find_done_marker(files, "_staging/j/g", lambda marker: marker.fingerprint == "print")
    assert found is not None
    assert found[0] == folder

    files.remove_file(staged.files[0].path)
    assert find_done_marker(files, "_staging/j/g", lambda _: True) is None


def test_a_replaced_warehouse_is_not_written_to(bucket: str) -> None:
    Warehouse(f"{bucket}/w").ensure_id()
    with pytest.raises(WarehouseMismatch):
        Warehouse(f"{bucket}/w", expected_id="another").storage.write_durable("x", b"")


def test_a_stream_file_in_a_missing_bucket_is_not_reported_as_a_missing_file(
    bucket: str, tmp_path: Path
) -> None:
    """The answer of S3 to a question about one object is the same for both."""
    warehouse = Warehouse(str(tmp_path))
    warehouse.ensure_id()
    with pytest.raises(Refused, match=f"there is no file {bucket}/in/a.csv"):
        skip_file(warehouse, "loads", f"{bucket}/in/a.csv", by="anna")
    with pytest.raises(
        SourceUnavailable, match=f"the bucket of {bucket}-not does not exist. Make it, or correct"
    ):
        skip_file(warehouse, "loads", f"{bucket}-not/in/a.csv", by="anna")


def ask_everything(files: Files) -> list[BaseException]:
    errors: list[BaseException] = []
    asks = (
        lambda: files.read("a"),
        lambda: files.size("a"),
        lambda: files.names("a"),
        lambda: files.create("a", b""),
        lambda: files.write_durable("a", b""),
        lambda: files.open("a"),
        lambda: files.remove_tree("a"),
        lambda: files.sync(["a"]),
    )
    for ask in asks:
        with pytest.raises(OSError) as raised:
            ask()
        errors.append(raised.value)
    for error in errors:
        assert not isinstance(error, FileNotFoundError), "nobody knows whether it is there"
        assert KEY not in str(error)
        assert SECRET not in str(error)
    return errors


def test_a_missing_bucket_is_not_a_missing_file(bucket: str) -> None:
    for error in ask_everything(Files(f"{bucket}-not/w")):
        assert "the bucket of" in str(error)


def test_an_unreachable_store_is_not_a_missing_file(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        ask_everything(Files(f"{bucket}/w"))
        seen = warehouse_facts(f"{bucket}/w", "word")
    assert "error sending request" in seen.trouble


def test_doctor_tests_a_bucket(bucket: str) -> None:
    uri = f"{bucket}/w"
    assert not warehouse_facts(uri, "word").exists
    known = Warehouse(uri).ensure_id()
    seen = warehouse_facts(uri, "word")
    assert (seen.exists, seen.id, seen.creates_once, seen.trouble) == (True, known, True, "")
    assert Files(uri).names("") == ["_warehouse_id"]
    assert "the bucket of" in warehouse_facts(f"{bucket}-not/w", "word").trouble


def test_doctor_reports_a_missing_spark_connector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert lacks_connector("s3://bucket/w", {})
    assert not lacks_connector("/data/w", {})
    assert not lacks_connector(
        "s3://bucket/w", {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}
    )
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/hadoop-aws-3.5.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert not lacks_connector("s3://bucket/w", {})


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hidden@bucket/w",
        "s3://key@bucket/w",
        "s3://bucket/w?X-Amz-Signature=hidden",
        "gs://a:hidden@b",
    ],
)
def test_an_address_with_a_user_or_key_is_refused_without_showing_it(uri: str) -> None:
    for use in (Files, lambda uri: Settings(warehouse=uri)):
        with pytest.raises(ValueError, match="holds a user or a key") as raised:
            use(uri)
        assert "hidden" not in str(raised.value)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(WarehouseUnsupported, match=r"\.\[s3\]"):
        Files("s3://never-opened-before/w")


def test_a_forked_process_reports_an_error_instead_of_hanging(bucket: str) -> None:
    """The library's threads are not in it."""
    files = Files(f"{bucket}/w")
    files.write_durable("a", b"")
    child = os.fork()
    if child == 0:
        try:
            files.read("a")
        except OSError as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_multiline_answer_is_one_line_in_the_error(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Azure answers."""
    said = b"<Error><Code>AccessDenied</Code><Message>No.\nRequestId:1\nTime:2</Message></Error>"

    class MultilineAnswer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), MultilineAnswer) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(PermissionError, match=r"\(AccessDenied: No\. RequestId:1 Time:2\)"):
                Files(f"{bucket}/w").read("a")
        finally:
            server.shutdown()


def test_folder_markers_are_not_files_but_empty_files_are(bucket: str, s3_server: S3Server) -> None:
    """S3A makes an object ``folder/`` for a folder; the library lists it as ``folder``."""
    with closing(s3_server.client("s3")) as s3:
        for key in ("w/folder/", "w/folder/inner/", "w/folder/inner/file", "w/folder/empty"):
            s3.put_object(
                Bucket=bucket.removeprefix("s3://"),
                Key=key,
                Body=b"x" if key.endswith("/file") else b"",
            )
    assert Files(f"{bucket}/w").paths("") == ["folder/empty", "folder/inner/file"]
