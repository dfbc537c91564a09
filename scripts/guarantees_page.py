"""Make the page of guarantees from the tests that carry a claim.

A test carries a claim by the marker `@pytest.mark.claim("A sentence.")`. The markers are read from
the source with `ast`, so that no test is imported. The folder of a test names its promise.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MAX_CLAIMS = 80

HEAD = """\
# Guarantees

Each claim on this page names the tests that fail without it. The tests run on a real Valkey, with real processes, real
signals and a real Spark. `make test-all` runs them. `make test` runs those in bold: one per kind of failure.

Beside these tests, `make simulate` plays random histories of messages, crashes and commands on the deciding code
([the simulator](internals/simulation.md)), and `make chaos` breaks the processes of a real fleet
([how](operate.md#break-a-fleet-on-purpose)). Both compare the result with an independent statement of the promises.

The promises have limits: [what is not promised](#what-is-not-promised).
"""

LIMITS = """\
## What is not promised

- **A group may run more than once.** Exactly one result counts. After a rollback of Redis, a second runner may start an
  attempt that another one still executes, until the first one renews its lease. A group without outputs, results and
  fork values leaves no marker, so it runs again if its outcome was lost.
- **Three waits have no deadline by default.** A step may run as long as its lease is renewed. A group may wait for a
  queue that nobody serves. Both end by a [timeout](spec.md#timeouts) if one is set. A package waits until its
  warehouse can be reached. All three are checked again and again, and `unstuck why` explains them.
- **Redis may lose its last second.** With `appendfsync everysec` a power failure may lose the submits and commands of
  the last second, unless `UNSTUCK_DURABILITY=fsync` is set. Finished work is found by its marker, and a published
  package by the warehouse log. Three cases remain:
  - A job that was FINISHED or publishing in that second may end as CANCELED, STOPPED or FAILED although its package is
    published: a user ends it, its timeout expires, or a group fails when it runs again.
  - A job that is altered before it publishes again keeps the published package, and is FINISHED.
  - A job whose spec names no output is FINISHED without a look at the published package, if its groups make no output
    when they run again.
- **A process started by code inside a Spark task** may outlive the attempt while its parent, a Python worker of Spark,
  is reused. It ends with the runner.
- **A frozen process is not revived.** A runner or worker that received SIGSTOP takes no work, and other workers do it.
  Only a frozen watchdog is replaced, by its runner.
- **Code that a step replaces** in a shared process may be called by another step within one second, if no outcome
  depends on it. `fresh: true` gives a group a process of its own.
- **Jobs do not run forever.** A job reads [what has arrived](spec.md#stream-inputs) and ends; `kind: streaming` is
  refused.
- **A file system must be honest** about `fsync`, hard links and conditional writes. Storage that refuses the second of
  two writers only when they do not write at the same time is not detected.
"""


class Promise(NamedTuple):
    """One section of the page.

    Attributes:
        folders: the folders of its tests, below `tests`.
    """

    title: str
    text: str
    folders: tuple[str, ...]


PROMISES = (
    Promise(
        "1. Nothing is forgotten",
        "Any message or process may be lost at any time. The job still ends.",
        ("guarantees/nothing_is_forgotten",),
    ),
    Promise(
        "2. One at a time",
        "Two attempts of a group never both count.",
        ("guarantees/one_at_a_time",),
    ),
    Promise(
        "3. The user's word is final",
        "Intent and status are two fields. Only commands of users write the intent.",
        ("guarantees/users_word_is_final",),
    ),
    Promise(
        "4. Every wait has an end and a reason",
        "A job is checked again without a user, and `unstuck why` explains it at any time.",
        ("guarantees/every_wait_ends",),
    ),
    Promise(
        "5. A state that was shown is true, and a terminal one is final",
        "FINISHED means that the data can be read. Notices, traces and errors say the same.",
        ("guarantees/shown_is_true", "unit/coordinator/notices", "chaos"),
    ),
    Promise(
        "6. Outputs are whole or absent",
        "Readers see all outputs of a job, once, or none of them.",
        ("guarantees/outputs_are_whole", "unit/coordinator/publishing"),
    ),
    Promise(
        "7. What is published is what was given",
        "Rows, names, types and times do not depend on the host or on earlier work.",
        ("guarantees/published_is_given", "spark"),
    ),
    Promise(
        "Schedules",
        "A tick is one run.",
        ("guarantees/schedules", "unit/coordinator/schedules"),
    ),
    Promise(
        "Installation",
        "An installation that cannot keep the promises is refused or reported.",
        ("guarantees/installation", "unit/web", "web"),
    ),
)


class Proof(NamedTuple):
    """A test that proves a claim.

    `path` is relative to the repository. `variant` is whether `make test` leaves the test out.
    """

    path: str
    name: str
    variant: bool = False


def claims(root: Path = ROOT) -> dict[str, list[Proof]]:
    """Return the tests of each claim.

    Raises:
        ValueError: a marker has no literal sentence.
    """
    tests: dict[str, list[Proof]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.claim" in text:
            module = ast.parse(text, filename=str(path))
            for claim, proof in _proofs(module, path.relative_to(root).as_posix()):
                tests[claim].append(proof)
    return dict(tests)


def _proofs(module: ast.Module, path: str) -> Iterator[tuple[str, Proof]]:
    """Yield each claim of a test module with its test."""
    whole_file = any(
        isinstance(node, ast.Assign) and _marks(node.value, "variant") for node in module.body
    )
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            marks = node.decorator_list
            variant = whole_file or any(_marks(mark, "variant") for mark in marks)
            for mark in marks:
                if _marks(mark, "claim"):
                    yield _sentence(mark), Proof(path, node.name, variant)


def _marks(expression: ast.expr, marker: str) -> bool:
    """Return whether an expression is this marker of pytest, called or not."""
    called = expression.func if isinstance(expression, ast.Call) else expression
    return ast.unparse(called) == f"pytest.mark.{marker}"


def _sentence(decorator: ast.expr) -> str:
    match decorator:
        case ast.Call(args=[ast.Constant(value=str(sentence))], keywords=[]):
            return sentence
    raise ValueError(f"a claim is one sentence: {ast.unparse(decorator)}")


def promise_of(tests: list[Proof]) -> Promise:
    """Return the promise whose folders hold most of the tests; of several, the first.

    Raises:
        ValueError: no promise has these tests.
    """
    counts = Counter(
        promise
        for test in tests
        for promise in PROMISES
        if test.path.startswith(tuple(f"tests/{folder}/" for folder in promise.folders))
    )
    if not counts:
        raise ValueError(f"{tests[0].path} belongs to no promise: add its folder to PROMISES")
    return max(PROMISES, key=lambda promise: counts[promise])


def _link(test: Proof) -> str:
    link = f"[`{test.name}`](../{test.path})"
    return link if test.variant else f"**{link}**"


def page() -> str:
    """Return the page as Markdown."""
    sections: dict[Promise, list[str]] = defaultdict(list)
    for claim, tests in claims().items():
        links = ", ".join(map(_link, tests))
        sections[promise_of(tests)].append(f"| {claim} | {links} |")
    parts = [HEAD]
    for promise in PROMISES:
        table = "\n".join(["| claim | tests |", "|---|---|", *sections[promise]])
        parts.append(f"## {promise.title}\n\n{promise.text}\n\n{table}\n")
    return "\n".join([*parts, LIMITS])
