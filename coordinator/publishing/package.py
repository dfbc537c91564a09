"""Reads the markers of a job, and assembles the package of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from unstuck.coordinator.errors import PublishFailed
from unstuck.coordinator.publishing.publish_request import PublishRequest
from unstuck.coordinator.publishing.streams.fork_positions import whole_checkpoint
from unstuck.coordinator.spec.lineage import Needs, led_to
from unstuck.tasks.errors import SchemaMismatch
from unstuck.tasks.identity import all_in_words
from unstuck.tasks.spec.schemas import joined
from unstuck.tasks.warehouse.files import Files
from unstuck.tasks.warehouse.marker import (
    Marker,
    StagedOutput,
    files_exist,
    joined_versions,
    read_marker,
)

MARKER_GONE = "MARKER_GONE"
OUTPUT_MISSING = "OUTPUT_MISSING"
DUPLICATE_OUTPUT = "DUPLICATE_OUTPUT"


class _Part(NamedTuple):
    """The part of a dataset that one attempt made."""

    name: str
    group: str
    staging: str
    output: StagedOutput
    marker: Marker


class Package(NamedTuple):
    """The outputs of a job, one for each dataset, and their origin.

    Attributes:
        expected: the staged parts of each output with expectations, published or not.
        tokens: staging folders of the files.
        sources: output → the published datasets that it was computed from, each with its versions;
            0 for a dataset that was not published.
        steps: output → `Change.steps`.
        made_on: output → versions of Python and Spark.
    """

    outputs: dict[str, StagedOutput]
    expected: dict[str, list[StagedOutput]]
    tokens: list[str]
    sources: dict[str, dict[str, list[int]]]
    steps: dict[str, dict[str, str]]
    made_on: dict[str, list[str]]

    def inputs_of(self, name: str) -> dict[str, list[int]]:
        """Return the versions of each published dataset that an output was computed from."""
        read = {
            dataset: [n for n in versions if n] for dataset, versions in self.sources[name].items()
        }
        return {dataset: versions for dataset, versions in read.items() if versions}


def read_package(files: Files, request: PublishRequest) -> Package:
    """Read the package of a job.

    Raises:
        PublishFailed: the package can never be published.
        WarehouseMismatch, OSError: the job's warehouse cannot be read.
    """
    try:
        return _collect(files, request)
    except PublishFailed:
        # A failure is final. A warehouse that is away raises here, so its job does not fail. A
        # warehouse that was away while its markers were read, and is back, is read once more.
        files.check()
        return _collect(files, request)


def _collect(files: Files, request: PublishRequest) -> Package:
    """Read the markers and put the package together. Raises: PublishFailed, OSError."""
    parts_by_name, expected = _read_markers(files, request)
    names = _names_to_publish(request, parts_by_name)
    _check_all_made(request.job, names, parts_by_name)
    chosen = {name: parts_by_name[name] for name in names}
    parts = [part for name in names for part in chosen[name]]
    makers = {name: named_parts[0].group for name, named_parts in chosen.items()}
    return Package(
        outputs={name: _union(files, request.job, name, chosen[name]) for name in names},
        expected=expected,
        tokens=list(dict.fromkeys(part.staging for part in parts)),
        sources={name: joined_versions(p.marker.sources for p in chosen[name]) for name in names},
        steps=_steps(parts, makers, request.needs),
        made_on={name: _made_on(chosen[name]) for name in names},
    )


def _check_all_made(
    job: str, names: Sequence[str], parts_by_name: Mapping[str, Sequence[_Part]]
) -> None:
    missing = [name for name in names if name not in parts_by_name]
    if missing:
        outputs = ", ".join(sorted(parts_by_name)) or "no outputs"
        raise PublishFailed(
            OUTPUT_MISSING,
            f"job {job} is to publish {', '.join(missing)}, which none of its groups made. They "
            f"made: {outputs}. Correct publish: in the spec, or the step that should write it",
        )


def _made_on(parts: Sequence[_Part]) -> list[str]:
    return sorted({all_in_words(part.marker.made_on) for part in parts} - {""})


def _read_markers(
    files: Files, request: PublishRequest
) -> tuple[dict[str, list[_Part]], dict[str, list[StagedOutput]]]:
    """Return by name the parts of outputs that may be published, and the outputs with expectations.

    Raises: PublishFailed, OSError.
    """
    parts_by_name: dict[str, list[_Part]] = {}
    expected: dict[str, list[StagedOutput]] = {
        name: [] for name, spec in request.outputs.items() if spec.expect is not None
    }
    for group, folders in request.sources.items():
        may_publish = request.requested is not None or group in request.published_by
        if not (may_publish or expected):
            continue
        for part in _parts_of(files, request.job, group, folders):
            if may_publish:
                parts_by_name.setdefault(part.name, []).append(part)
            if part.name in expected:
                expected[part.name].append(part.output)
    return parts_by_name, expected


def _parts_of(files: Files, job: str, group: str, folders: Sequence[str]) -> Iterator[_Part]:
    """Yield the outputs of a group. Raises: PublishFailed, OSError."""
    for staging in folders:
        marker = read_marker(files, staging)
        if marker is None:
            raise _gone(files, job, group, staging, "its marker is gone or cannot be read")
        for name, output in marker.outputs.items():
            yield _Part(name, group, staging, output, marker)


def _names_to_publish(
    request: PublishRequest, parts_by_name: Mapping[str, Sequence[_Part]]
) -> list[str]:
    """Return the names of the datasets to publish, also of those that no group made."""
    if request.requested is None:
        return list(parts_by_name)
    names = list(dict.fromkeys(request.requested))
    requested = set(names)
    rejected = [
        name
        for name, parts in parts_by_name.items()
        if parts[0].output.rejected_of in requested and name not in requested
    ]
    # Rejected rows are published with their output.
    return [
        name for name in (*names, *rejected) if name in parts_by_name or name not in request.skipped
    ]


def _steps(
    parts: Sequence[_Part], makers: Mapping[str, str], needs: Needs
) -> dict[str, dict[str, str]]:
    """Return the code that led to each output.

    Args:
        makers: by output, the group that made it.
    """
    # After a deploy, members of a fork may have run different code.
    codes: dict[str, dict[str, None]] = {}
    for part in parts:
        codes.setdefault(part.group, {})[part.marker.code] = None
    code_of = {group: ", ".join(filter(None, each)) for group, each in codes.items()}
    groups = led_to(needs, code_of)
    return {
        name: {group: code_of[group] for group in sorted(groups[maker])}
        for name, maker in makers.items()
    }


def _union(files: Files, job: str, name: str, parts: list[_Part]) -> StagedOutput:
    """Return the parts of one dataset, made by the members of one fork, as one output.

    Raises: PublishFailed, OSError.
    """
    _check_parts(files, job, name, parts)
    # The file of a member without rows has only its columns, which may be a guess.
    with_rows = [part for part in parts if part.output.rows]
    if not with_rows:
        with_rows = parts
    outputs = [part.output for part in parts]
    checkpoints = list(filter(None, (output.checkpoint for output in outputs)))
    idle = {output.nothing_new for output in outputs}
    return StagedOutput(
        files=list(chain.from_iterable(part.output.files for part in with_rows)),
        rows=sum(part.output.rows for part in with_rows),
        schema=_joined_schema(files, job, name, with_rows),
        rejected_of=outputs[0].rejected_of,
        checkpoint=whole_checkpoint(files, name, checkpoints),
        replaces=list(chain.from_iterable(output.replaces for output in outputs)),
        nothing_new="" if "" in idle else outputs[0].nothing_new,
    )


def _check_parts(files: Files, job: str, name: str, parts: Sequence[_Part]) -> None:
    """Check that one group made all parts, and that their files exist. Raises: PublishFailed."""
    first = parts[0]
    for part in parts:
        if part.group != first.group:
            raise PublishFailed(
                DUPLICATE_OUTPUT,
                f"job {job}: the groups {first.group} and {part.group} both made the output "
                f"{name}. Only members of one fork may share an output; give one of them another "
                "name",
            )
    for part in parts:
        if not files_exist(files, part.output.written):
            what = f"files of its output {name} are gone or cut short"
            raise _gone(files, job, part.group, part.staging, what)


def _joined_schema(files: Files, job: str, name: str, parts: Sequence[_Part]) -> str:
    """Return the schema with the columns of all parts. Raises: PublishFailed."""
    first, schema = parts[0], parts[0].output.schema
    for part in parts[1:]:
        try:
            schema = joined(schema, part.output.schema)
        except SchemaMismatch as error:
            raise PublishFailed(
                error.code,
                f"job {job}: the members of {first.group} made {name} with different columns: "
                f"{error} ({files.uri(first.staging)} against {files.uri(part.staging)}). Give "
                "the columns fixed types, as columns: does",
            ) from error
    return schema


def _gone(files: Files, job: str, group: str, staging: str, what: str) -> PublishFailed:
    return PublishFailed(
        MARKER_GONE,
        f"job {job}, group {group}: {what} ({files.uri(staging)}), so its outputs cannot be "
        "published. Something outside removed it; submit the job again",
    )
