"""The few operations that Unstuck asks of a file system, rooted at one warehouse.

A publish is safe because of two of them: ``write_durable`` (whole and on disk, or as before) and
``create`` (whole and on disk, and only if nothing was there). A file system that has no such
``create`` is refused, never imitated.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import RawIOBase
from pathlib import Path
from typing import IO, Annotated

from pydantic import AfterValidator

from unstuck.tasks.errors import WarehouseUnsafe, WarehouseUnsupported
from unstuck.tasks.settings import plain_path, without_user
from unstuck.tasks.warehouse.object_store import ObjectStore

_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
# Spark reads these in a path as a pattern.
_PATTERN = set("*?[]{}\\")
# An empty part, . and .., and characters that Spark escapes in names.
_NO_PART = re.compile(r"/\.{0,2}(?=/)|[\x00-\x1f\x7f]")


class Files:
    """The files below one warehouse URI.

    Every ``path`` is relative to it, with ``/`` between its parts.
    """

    def __init__(self, uri: str, check: Callable[[], None] | None = None) -> None:
        """Open the files of a warehouse.

        Args:
            uri: an absolute path, ``file:///…``, ``s3://…`` and the like, or ``memory://…`` (one
                process; for tests).
            check: raises if the place is not the one that was meant. None: any place will do, and
                is made if absent.

        Raises:
            ValueError: the path is not absolute, holds a character that Spark reads as a pattern,
                or a user's name.
            WarehouseUnsupported: no such kind of store, or the package for it is not installed.
        """
        without_user(uri)
        uri = plain_path(uri)
        if _PATTERN.intersection(uri):
            raise ValueError(
                f"the warehouse {uri} has one of * ? [ ] {{ }} \\ in its path; choose another "
                "folder"
            )
        # Called after each answer of the place, so that who waits for many can tell a slow one from
        # one that hangs.
        self.answered: Callable[[], None] = lambda: None
        # A mount that goes away leaves a path that can be written to, and nobody would find what
        # was written there.
        self._check = check
        self._root = uri.rstrip("/")
        self._store: ObjectStore | None = None
        if "://" in uri:
            self._store = ObjectStore(self._root)
        elif not uri.startswith("/"):
            raise ValueError(
                f"the warehouse {uri!r} must be an absolute path or a URI, or its hosts will "
                "disagree on it"
            )

    def check(self) -> None:
        """Call the ``check`` of the constructor. Raises: as that."""
        if self._check is not None:
            self._check()

    @contextmanager
    def _checked_place(self) -> Iterator[None]:
        """Check before and after: the place may go between the first check and the write."""
        self.check()
        yield
        self.check()

    def uri(self, path: str) -> str:
        """Return an address for Spark, pyarrow or DuckDB: an absolute path, or a URI."""
        return f"{self._root}/{checked_path(path)}" if path else self._root or "/"

    def local_path(self, path: str) -> Path | None:
        """Return ``path`` on this machine; None if the warehouse is not a folder."""
        return None if self._store is not None else Path(self.uri(path))

    def read(self, path: str) -> bytes:
        """Return the whole content.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it could not be read, and may or may not exist.
        """
        store = self._store
        data = _read_local(self.uri(path)) if store is None else store.read(_checked(path))
        self.answered()
        return data

    def open(self, path: str) -> IO[bytes] | RawIOBase:
        """Open a file for reading, also in parts. Raises: as ``read``."""
        return (
            Path(self.uri(path)).open("rb")
            if self._store is None
            else self._store.open(_checked(path))
        )

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist.

        Raises: OSError: it could not be asked.
        """
        try:
            store = self._store
            return os.stat(self.uri(path)).st_size if store is None else store.size(_checked(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        finally:
            self.answered()

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in ``folder``; empty if it is absent.

        Raises: OSError: it could not be listed.
        """
        try:
            store = self._store
            return (
                sorted(os.listdir(self.uri(folder)))
                if store is None
                else store.names(_checked(folder))
            )
        except FileNotFoundError:
            return []

    def paths(self, folder: str) -> list[str]:
        """Return the sorted files in ``folder`` and below it.

        Raises: OSError: it could not be listed.
        """
        if self._store is not None:
            return sorted(self._store.paths(_checked(folder)))
        root = Path(self.uri(""))
        return sorted(
            str(path.relative_to(root))
            for path in Path(self.uri(folder)).rglob("*")
            if path.is_file()
        )

    def write_durable(self, path: str, data: bytes) -> None:
        """Write or replace a file atomically and durably.

        Readers see the old content or all of the new, also after a power loss.

        Raises:
            OSError: it is not known to be on disk; the old or the new content stands. Repeating is
                safe.
            Exception: as ``check``; what was written, if anything, stands in another place and
                counts for nothing.
        """
        with self._checked_place():
            if self._store is not None:
                self._store.put(_checked(path), data)
                return
            local = self.uri(path)
            folder = os.path.dirname(local)
            self._make_folder(folder)
            temp = _write_temp(local, data)
            try:
                os.replace(temp, local)
            except BaseException:
                _remove(temp)
                raise
            _sync(folder)

    def create(self, path: str, data: bytes) -> bool:
        """Create a file with its whole content if it does not exist. Returns True if this call did.

        Of any number of callers at one time at most one gets True. A caller that gets False reads
        the file to learn
        whose it is: where a reply was lost it may be the caller's own.

        Raises:
            WarehouseUnsupported: this file system cannot do that in one step.
            OSError: it is not known whether the file was made; read it.
            Exception: as ``check``; nor is it known here.
        """
        with self._checked_place():
            return self._create(path, data)

    def _create(self, path: str, data: bytes) -> bool:
        store = self._store
        return (
            self._create_local(self.uri(path), data)
            if store is None
            else store.create(_checked(path), data)
        )

    def creates_once(self, path: str) -> bool:
        """Return whether a second create of ``path`` is refused. Removes ``path`` again.

        Raises: as ``create``, but for ``check``, which is not called.
        """
        try:
            self._create(path, b"first")
            return not self._create(path, b"second") and self.read(path) == b"first"
        finally:
            with suppress(OSError):  # what went wrong first is told
                self.remove_tree(path)

    def try_place(self) -> None:
        """Check that this storage can create a file exclusively.

        Raises: WarehouseUnsafe: it cannot.

        Else as ``creates_once``.
        """
        if not self.creates_once(f"_try-{uuid.uuid4().hex}"):
            raise WarehouseUnsafe(
                f"{self.address} cannot hold a warehouse: of two writers that created one file, "
                "the second was not refused, so two publishers would overwrite each other. Nothing "
                "is published there. An object store must honour If-None-Match (upgrade it, or "
                "take another), a folder must have exclusive hard links"
            )

    @property
    def address(self) -> str:
        """Return the address of the files as seen from this process.

        It includes the endpoint of a store, or the kind of file system.
        """
        if self._store is not None:
            return self._store.address
        return f"{self._root} {_file_system(os.stat(self._root or '/').st_dev)}".rstrip()

    def _create_local(self, local: str, data: bytes) -> bool:
        folder = os.path.dirname(local)
        self._make_folder(folder)
        temp = _write_temp(local, data)
        try:
            # link, not rename: rename replaces what is there. The content is on disk before the
            # name appears.
            os.link(temp, local)
            created = True
        except FileExistsError:
            created = False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise WarehouseUnsupported(
                    f"the file system at {self._root} has no hard links ({error}), so two "
                    "publishers could overwrite each other; put the warehouse on another file "
                    "system or on an object store"
                ) from error
            raise
        finally:
            _remove(temp)
        # Also when it was there: its author may have died before this sync, and the caller will
        # believe what it reads.
        _sync(folder)
        return created

    def move(self, path: str, target: str) -> None:
        """Give a file another path; an object store copies it. Raises: OSError; as ``check``."""
        with self._checked_place():
            if self._store is None:
                os.replace(self.uri(path), self.uri(target))
            else:
                self._store.move(_checked(path), _checked(target))

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files that somebody else wrote, and their names, to disk. Spark does not sync.

        Raises:
            FileNotFoundError: one of them is not there.
            OSError: one could not be synced.
        """
        folders = set()
        for path in paths:
            if self._store is None:
                local = self.uri(path)
                _sync(local)
                self.answered()
                folders.add(os.path.dirname(local))
            elif self.size(path) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(path))
        for folder in folders:
            _sync(folder)
            self.answered()

    def make_folder(self, folder: str, *, checked: bool = False) -> None:
        """Create ``folder`` and its parents if absent. Object stores have no folders.

        Only its parents are known to be on disk: what must last there is written and then
        ``sync_names`` called.
        ``checked``: the caller has just called ``check``.

        Raises: OSError; as ``check``.
        """
        if not checked:
            self.check()
        if self._store is None:
            self._make_folder(os.path.dirname(self.uri(folder)))
            with suppress(FileExistsError):
                os.mkdir(self.uri(folder))

    def sync_names(self, folder: str) -> None:
        """Sync the names of ``folder`` and of its parent to disk.

        Raises: OSError.
        """
        if self._store is None:
            above = os.path.dirname(self.uri(folder))
            _sync(above)
            _sync(os.path.dirname(above))

    def remove_file(self, path: str) -> None:
        """Remove a file if it exists, and folders that become empty.

        Raises: OSError; as ``check``.
        """
        self.check()
        if self._store is not None:
            self._store.remove_file(_checked(path))
            return
        local = self._removable(path)
        local.unlink(missing_ok=True)
        root = Path(self.uri(""))
        for folder in local.parents:
            if folder == root:
                break
            try:
                folder.rmdir()
            except OSError:
                break  # it is not empty, or somebody else has removed it

    def remove_tree(self, folder: str) -> None:
        """Remove ``folder`` and everything below it, or a file, if it exists.

        Others may remove it at the same time.

        Raises:
            ValueError: ``folder`` is the warehouse itself.
            OSError: something could not be removed.
        """
        if not folder.strip("/"):
            raise ValueError("refusing to remove the whole warehouse")
        if self._store is not None:
            self._store.remove_tree(_checked(folder))
            return
        local = self._removable(folder)
        if local.is_file() or local.is_symlink():
            local.unlink(missing_ok=True)
        while local.exists():
            try:
                shutil.rmtree(local)
            except FileNotFoundError:
                continue  # somebody else removed a part of it first: less is left than before

    def _removable(self, path: str) -> Path:
        """Return ``path`` on this machine.

        Raises: OSError: a parent folder is a link that leads out of the warehouse.
        """
        local = Path(self.uri(path))
        if not local.parent.resolve().is_relative_to(Path(self.uri("")).resolve()):
            raise OSError(
                f"{local} is not removed: {local.parent.resolve()}, where it really is, lies "
                f"outside of the warehouse {self._root}. A link leads there. Remove the link if it "
                "should not be there; use a mount if it should"
            )
        return local

    def _make_folder(self, folder: str) -> None:
        root = self.uri("") if self._check is not None else None
        missing = [folder]
        while _is_missing(missing[-1]):
            if missing[-1] == root:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
            missing.append(os.path.dirname(missing[-1]))
        for parent, child in zip(reversed(missing), reversed(missing[:-1]), strict=False):
            with suppress(FileExistsError):
                os.mkdir(child)
            _sync(parent)  # the name of a new folder is in its parent


def _checked(path: str) -> str:
    return checked_path(path) if path else path


def checked_path(path: str) -> str:
    """``path`` of a file below the warehouse, which has one spelling. Raises: ValueError.

    Two spellings of one file would be two files to who compares them, as a vacuum does.
    """
    if _NO_PART.search(f"/{path}/"):
        raise ValueError(f"{path[:200]!r} is not a path inside the warehouse")
    return path


WarehousePath = Annotated[str, AfterValidator(checked_path)]


@lru_cache
def _file_system(device: int) -> str:
    """The kind of the file system with this number, as Linux knows it; empty if it is not known.

    One folder may be ext4 on the host that has it and NFS on all others, which do not keep the same
    promises.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    kinds = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == number]
    return kinds[0] if kinds else ""


def _is_missing(path: str) -> bool:
    """Return whether a path is absent. Raises: OSError: the file system does not answer."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _read_local(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _write_temp(target: str, data: bytes) -> str:
    """Write ``data`` to disk under a temporary name beside ``target``. Readers ignore dot files."""
    folder, name = os.path.split(target)
    temp = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    # 0666 less the umask, as for any file: mkstemp's 0600 would hide the log from readers of
    # another account.
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        _remove(temp)
        if isinstance(error, OSError):  # of a write, which names no file
            error.filename = error.filename or target
        raise
    return temp


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
