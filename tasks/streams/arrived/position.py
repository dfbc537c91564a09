"""The position of a stream: one JSON document by kind, packed, which the package names."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from unstuck.tasks.errors import OutputInvalid, Unrecoverable
from unstuck.tasks.json_fields import DEFERRED
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.log_entry import DatasetState
from unstuck.tasks.warehouse.marker import Checkpoint


@dataclass(frozen=True, slots=True, config=DEFERRED)
class FilesPosition:
    """The files that were read.

    Attributes:
        contents: path → content of each file that counts as read since the stream, or its
            generation, began.
        read: of them, those that the job which published this position has read, with their rows;
            None: not counted.
        put_aside: path → why the job has read no row of the file.
        digests: path → digest of the bytes of files that were read, to recognize copies.
    """

    contents: dict[str, str] = field(default_factory=dict)
    read: dict[str, int | None] = field(default_factory=dict)
    put_aside: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    kind: Literal["files"] = "files"


@dataclass(frozen=True, slots=True, config=DEFERRED)
class KafkaPosition:
    """The next offset of each partition, and the offset at which the publishing job began.

    Attributes:
        topic_id: of the topic, if the broker gives one; a topic that was deleted and made again has
            another.
        lost: partition → from and up to where the broker had removed messages, which ``on_lost:
            skip`` has passed over.
    """

    next: dict[int, int] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    topic_id: str = ""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    kind: Literal["kafka"] = "kafka"


def joined(
    base: FilesPosition | KafkaPosition | None, shares: Sequence[FilesPosition | KafkaPosition]
) -> FilesPosition | KafkaPosition:
    """Return the position ``base``, moved on by ``shares`` of the members of a fork.

    Raises: ValueError: two shares have read the same, or the shares are of different topics.
    """
    files = [share for share in shares if isinstance(share, FilesPosition)]
    topics = [share for share in shares if isinstance(share, KafkaPosition)]
    _check_disjoint(files, topics)
    if topics:
        return _joined_topics(base if isinstance(base, KafkaPosition) else None, topics)
    return _joined_files(base if isinstance(base, FilesPosition) else FilesPosition(), files)


def _check_disjoint(files: Sequence[FilesPosition], topics: Sequence[KafkaPosition]) -> None:
    """Check that shares are disjoint. Raises: ValueError: two have the same file or partition."""
    each = [set(share.contents) for share in files] + [
        set(map(str, share.next)) for share in topics
    ]
    whole = set[str]().union(*each)
    if sum(map(len, each)) > len(whole):
        twice = next(name for name in sorted(whole) if sum(name in names for names in each) > 1)
        raise ValueError(f"two of them have read {twice if files else f'partition {twice}'}")


def _joined_topics(base: KafkaPosition | None, shares: Sequence[KafkaPosition]) -> KafkaPosition:
    """Check the topic of shares. Raises: ValueError: they are of different topics."""
    if len({share.topic_id for share in shares}) > 1:
        raise ValueError("the topic was deleted and made again while they read it")
    # The position of a partition that no share has read stays as it was.
    before = {} if base is None else base.next
    return KafkaPosition(
        next={**before, **_all(share.next for share in shares)},
        began={**before, **_all(share.began for share in shares)},
        topic_id=shares[0].topic_id,
        lost=_all(share.lost for share in shares),
    )


def _joined_files(base: FilesPosition, shares: Sequence[FilesPosition]) -> FilesPosition:
    return FilesPosition(
        contents=base.contents | _all(share.contents for share in shares),
        read=_all(share.read for share in shares),
        put_aside=_all(share.put_aside for share in shares),
        digests=base.digests | _all(share.digests for share in shares),
    )


def _all(parts: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {key: value for part in parts for key, value in part.items()}


def goes_on(published: Checkpoint | None, stream: str, generation: int, state: bool) -> bool:
    """Return whether the stream continues from ``published``; False if it begins again.

    Raises: Unrecoverable: ``published`` belongs to another stream.
    """
    if published is None or published.generation < generation:
        return False
    if published.generation > generation:
        raise Unrecoverable(
            f"the stream is at generation {published.generation} already, and this job has "
            f"generation {generation}, which would read everything again; say generation: "
            f"{published.generation}"
        )
    if published.stream != stream:
        raise Unrecoverable(
            f"the dataset was loaded from {published.stream} before, and this job reads {stream}. "
            f"Publish into another dataset, or say generation: {published.generation + 1} to "
            "append all that stands there"
        )
    if (published.state is not None) != state:
        was = "without" if state else "with"
        raise Unrecoverable(
            f"the dataset was loaded from {stream} {was} state: true before, and one cannot go on "
            f"from the other. Say state: as before, or generation: {published.generation + 1} to "
            "append all that stands there"
        )
    return True


def holder_of(
    datasets: Mapping[str, DatasetState | None], stream: str, generation: int
) -> str | None:
    """The one of ``datasets`` that holds the position of ``stream``; None if none does yet.

    Args:
        datasets: those that the group of the stream appends to; None for one that is not published.

    Raises: Unrecoverable: no job could go on: two hold it, or all hold the position of another
    stream.
    """
    held = {
        name: state.checkpoint
        for name, state in datasets.items()
        if state is not None and state.checkpoint
    }
    own = _owners(held, stream)
    if own:
        _check_one_position(held, own, stream, generation)
        return own[0]
    taken = [
        checkpoint
        for checkpoint in held.values()
        if checkpoint.generation >= generation and not checkpoint.held_by
    ]
    if taken and len(taken) == len(datasets):
        goes_on(taken[0], stream, generation, taken[0].state is not None)
    return None


def _owners(held: Mapping[str, Checkpoint], stream: str) -> list[str]:
    """Return the datasets with the newest position of ``stream``, without those that only note it.

    Return the latter if no dataset holds the position itself.
    """
    own = [name for name, checkpoint in held.items() if checkpoint.stream == stream]
    newest = max((held[name].generation for name in own), default=0)
    own = [name for name in own if held[name].generation == newest]
    return [name for name in own if not held[name].held_by] or own


def _check_one_position(
    held: Mapping[str, Checkpoint], own: Sequence[str], stream: str, generation: int
) -> None:
    """Check the positions of ``stream``. Raises: OutputInvalid: those of ``own`` differ."""
    newest = held[own[0]].generation
    if len({held[name].path for name in own}) > 1 and generation <= newest:
        raise OutputInvalid(
            f"both {own[0]} and {own[1]} hold a position of {stream}, so what is new for one is "
            "not for the other. Read the stream in a group for each of them, which says output: at "
            f"its step, or say generation: {newest + 1}"
        )


def checkpoint_of(
    datasets: Mapping[str, DatasetState | None], stream: str, generation: int
) -> Checkpoint | None:
    """The published position of ``stream``. As `holder_of`."""
    holder = holder_of(datasets, stream, generation)
    state = None if holder is None else datasets[holder]
    return None if state is None else state.checkpoint


Position = Annotated[FilesPosition | KafkaPosition, Field(discriminator="kind")]
_POSITION: TypeAdapter[FilesPosition | KafkaPosition] = TypeAdapter(Position, config=DEFERRED)


def write_position(files: Files, path: str, position: FilesPosition | KafkaPosition) -> int:
    """Write ``position`` durably to the file ``path``. Returns the number of bytes.

    Raises: OSError; as ``Files.check``.
    """
    data = zlib.compress(_POSITION.dump_json(position), level=1)
    files.write_durable(path, data)
    return len(data)


def read_position(files: Files, path: str) -> FilesPosition | KafkaPosition:
    """The position in the file ``path``.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the store failed, or the file is cut short.
    """
    data = files.read(path)
    try:
        return _POSITION.validate_json(zlib.decompress(data))
    except (zlib.error, ValidationError) as error:
        raise OSError(
            f"{files.uri(path)} is no position of a stream: {str(error)[:200]}"
        ) from error
