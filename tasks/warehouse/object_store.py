"""An object store as the place of a warehouse: S3, Google Cloud Storage or Azure Blob Storage.

A PUT is whole and durable once it is answered, and one with ``If-None-Match: *`` creates an object
only if there is none. Credentials and endpoint come from the environment or the machine's role,
never from an address.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

from unstuck.tasks.errors import WarehouseUnsupported
from unstuck.tasks.host import how_to_install

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_MEMORY = "memory"
# Who asks has a retry of its own, which waits longer and says so; the library's default is up to
# three minutes.
_RETRIES, _RETRY_FOR = 3, timedelta(seconds=30)
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
# Some requests are refused with an error of no class of its own.
_DENIED = re.compile(
    r"(?:<Code>|code: "
    r")(AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken)"
)
_SAID = re.compile(r"<Code>(.*?)</Code>.*?(?:<Message>(.*?)</Message>|$)", re.DOTALL)
_QUERY = re.compile(r"\?[^\s)\"']+")  # of an address: it may hold a signature
_USER = re.compile(r"//[^/@]*@")  # of an address
_SERVER = re.compile("(?<!METADATA_)ENDPOINT|ACCOUNT_NAME|EMULATOR")  # of a variable's name
# Where an AWS machine requests the keys of its role.
_ROLE = re.compile("/latest/(api/token|meta-data/iam)")
_NO_KEYS = "no credentials: none in the environment, and this machine has no role that gives any"
_GIVE_KEYS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this process, or give the machine a role"
)
# By any of these a process has keys, or needs none.
_KEYS = (
    *(
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_SKIP_SIGNATURE",
    ),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_TEXT = 300  # characters of an error that people are shown

_memory: dict[str, Any] = {}
# The process that opened a store. The library hangs in a process that was forked from it.
_opened_in: list[int] = []


class ObjectStore:
    """The objects below one URI. Every ``path`` is relative to it."""

    def __init__(self, uri: str) -> None:
        """Open a store.

        Args:
            uri: such as ``s3://bucket/prefix``, without a trailing slash; ``memory://…`` is one
                process, for tests.

        Raises:
            ValueError: the address cannot be read alike by all readers, or the settings of the
                store do not fit.
            WarehouseUnsupported: no such kind of store, or the package for it is not installed.
        """
        self._uri = uri
        scheme, _, rest = uri.partition("://")
        if scheme not in (*SCHEMES, _MEMORY):
            supported = ", ".join(f"{name}://" for name in SCHEMES)
            raise WarehouseUnsupported(
                f"a warehouse cannot be at {scheme}://: it may not create a file only if it is "
                f"absent. Known to work: a local or shared folder; by the library also: {supported}"
            )
        if set("%#").intersection(rest) or "//" in rest or not rest:
            raise ValueError(
                f"the warehouse {uri} must have a bucket, no empty folder, and no % or # in its "
                "address"
            )
        try:
            self._store = _open_store(uri, os.getpid(), _environment())
        except ImportError:
            raise WarehouseUnsupported(
                f"the warehouse {uri} needs the package obstore in this process. "
                f"{how_to_install('s3')}"
            ) from None
        import obstore

        self._api = obstore

    @property
    def address(self) -> str:
        """The URI, and the server that answers for it by the environment; no user, no key."""
        server_settings = [
            f"{name}={_USER.sub('//', value)}"
            for name, value in _environment()
            if _SERVER.search(name)
        ]
        return " ".join([self._uri, *server_settings])

    def read(self, path: str) -> bytes:
        """Return the whole content.

        Raises: FileNotFoundError: there is no such object. OSError: the store failed.
        """
        with self._errors(path):
            return bytes(self._api.get(self._store, path).bytes())

    def open(self, path: str) -> io.RawIOBase:
        """Open an object, which is read by ranges. Raises: FileNotFoundError, OSError."""
        size = self.size(path)
        if size is None:
            raise self._absent(path)
        return _Reader(self, path, size)

    def range(self, path: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``. Raises: FileNotFoundError, OSError."""
        with self._errors(path):
            return bytes(self._api.get_range(self._store, path, start=start, length=length))

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if it does not exist.

        Raises: OSError: the store failed.
        """
        try:
            with self._errors(path):
                return int(self._api.head(self._store, path)["size"])
        except (FileNotFoundError, PermissionError):
            pass
        try:
            # The answer to HEAD has no body: it tells no absent object from an absent bucket, and
            # not why it is denied.
            with self._errors(path):
                return int(self._api.get(self._store, path).meta["size"])
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in ``folder``; empty if there are none. Raises: OSError."""
        with self._errors(folder):
            listing = self._api.list_with_delimiter(self._store, folder or None)
        paths = [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
        return sorted({str(path).rpartition("/")[2] for path in paths})

    def paths(self, folder: str = "") -> Iterator[str]:
        """All objects in ``folder`` and below it, page by page. Raises: OSError."""
        return (path for path, *_ in self.listed(folder))

    def listed(self, folder: str) -> Iterator[tuple[str, int, str, float]]:
        """All objects in ``folder`` and below it: path, bytes, etag and when written, page by page.

        Raises: OSError.
        """
        with self._errors(folder):
            for page in self._api.list(self._store, folder or None):
                for entry in page:
                    path, size = str(entry["path"]), int(entry["size"])
                    # S3A makes an empty object ``folder/`` for a folder, which the library lists as
                    # ``folder``.
                    if size or self.size(path) is not None:
                        at = entry["last_modified"]
                        yield path, size, str(entry["e_tag"] or at.isoformat()), at.timestamp()

    def about(self, path: str) -> tuple[int, str]:
        """Bytes and etag of an object, as `listed` has them. Raises: FileNotFoundError, OSError."""
        try:
            with self._errors(path):
                metadata = self._api.head(self._store, path)
        except FileNotFoundError:
            # The answer to HEAD has no text, so a listing tells whether the bucket exists.
            with self._errors(path):
                next(iter(self._api.list(self._store, path)), None)
            raise
        return int(metadata["size"]), str(
            metadata["e_tag"] or metadata["last_modified"].isoformat()
        )

    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object. Raises: OSError: it is not known whether it was written."""
        with self._errors(path):
            self._api.put(self._store, path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if there is none.

        Returns:
            True: this call made it. False: it stands; it may be this call's own, if an answer was
                lost and the request
            was sent again, so the caller reads it.

        Raises:
            WarehouseUnsupported: this store refuses conditional writes.
            OSError: it is not known whether it was made.
        """
        with self._errors(path):
            try:
                self._api.put(self._store, path, data, mode="create", use_multipart=False)
            except (FileExistsError, self._api.exceptions.AlreadyExistsError):
                return False
        return True

    def move(self, path: str, target: str) -> None:
        """Copy an object and remove the first. Raises: FileNotFoundError, OSError."""
        with self._errors(path):
            self._api.rename(self._store, path, target)

    def remove_file(self, path: str) -> None:
        """Remove an object; nothing if it is absent. Raises: OSError."""
        try:
            with self._errors(path):
                self._api.delete(self._store, path)
        except FileNotFoundError:
            pass

    def remove_tree(self, folder: str) -> None:
        """Remove all below ``folder``, and an object of that name. Raises: OSError."""
        self.remove_file(folder)
        while True:
            with self._errors(folder):
                paths = [
                    entry["path"]
                    for batch in self._api.list(self._store, folder)
                    for entry in batch
                ]
            try:
                if paths:
                    with self._errors(folder):
                        self._api.delete(self._store, paths)
                return
            except FileNotFoundError:
                continue  # somebody else removed a part of it first: less is left than before

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Turn what the library raises into what a folder would raise.

        Nothing of an answer is shown but its reason.
        """
        if _opened_in != [os.getpid()]:
            raise OSError(
                f"{self._at(path)}: this process was forked from one that had opened an object "
                "store"
            )
        kinds = self._api.exceptions
        try:
            yield
        except (NotImplementedError, kinds.NotSupportedError) as error:
            raise WarehouseUnsupported(
                f"{self._uri} cannot do what a warehouse needs: {_reason(error)}"
            ) from None
        except (OSError, ValueError, kinds.BaseError) as error:
            if _NO_BUCKET.search(str(error)):
                text = (
                    f"the bucket of {self._uri} does not exist. Make it, or correct the "
                    "address: no bucket is made here"
                )
                raise OSError(text) from None
            if isinstance(error, FileNotFoundError):
                raise self._absent(path) from None
            denied = (PermissionError, kinds.PermissionDeniedError, kinds.UnauthenticatedError)
            if isinstance(error, denied) or _DENIED.search(str(error)):
                raise PermissionError(
                    f"{self._at(path)}: access denied ({_reason(error)}). The credentials of this "
                    "process must allow it to list the bucket, and to read, write and remove "
                    f"objects below {self._uri}"
                ) from None
            raise OSError(f"{self._at(path)}: {_reason(error)}") from None

    def _absent(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._uri}/{path}" if path else self._uri


class _Reader(io.RawIOBase):
    """An object as a file; each read is one request."""

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(
            0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        buffer[:length] = self._store.range(self._path, self._at, length)
        self._at += length
        return length


def lacking_keys(uri: str, environ: Mapping[str, str]) -> str:
    """Return a hint if no variable gives this process keys for the S3 at ``uri``; else empty.

    Its machine may have a role that gives keys. Asked for it, a machine that is not of AWS may not
    answer for long.
    """
    if not uri.startswith(("s3://", "s3a://")) or any(environ.get(name) for name in _KEYS):
        return ""
    return (
        "This process has no credentials in its environment, and its machine may have no role. "
        f"{_GIVE_KEYS}."
    )


def _environment() -> tuple[tuple[str, str], ...]:
    """The variables that the library reads, with their values."""
    return tuple(
        sorted(
            item for item in os.environ.items() if item[0].startswith(("AWS_", "GOOGLE_", "AZURE_"))
        )
    )


@lru_cache(maxsize=8)
def _open_store(uri: str, pid: int, environment: tuple[tuple[str, str], ...]) -> Any:
    """Return one client for each process and address, to reuse connections and credentials."""
    import obstore
    from obstore.store import MemoryStore, from_url

    if not _opened_in:
        _opened_in.append(pid)
    if uri.startswith(f"{_MEMORY}://"):
        return _memory.setdefault(uri, MemoryStore())
    try:
        return from_url(uri, retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_FOR})
    except (obstore.exceptions.BaseError, OSError) as error:
        raise ValueError(f"the warehouse {uri} cannot be opened: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """Why, in a line without the query of an address."""
    whole = str(error)
    if match := _SAID.search(whole):
        return f"{match[1]}: {' '.join(match[2].split())}" if match[2] else match[1]
    text = _QUERY.sub("", " ".join(whole.partition("\n\nDebug source")[0].split()))[:_TEXT]
    if _ROLE.search(text):
        return f"{_NO_KEYS}. {_GIVE_KEYS} ({text})"
    if "builder error" in whole and "http://" in whole:
        return f"{text}. An endpoint without TLS needs AWS_ALLOW_HTTP=true"
    return text
