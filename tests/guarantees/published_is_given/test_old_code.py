"""Real workers whose code changes on disk: no step runs as it was before, and no replacement is
charged to a group.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import fleet
from tests.support.paths import PYTHONPATH
from tests.support.servers import RedisServer, wait_until
from unstuck.tasks.protocol.report import Outcome, OutcomeKind
from unstuck.tasks.protocol.token import Offer

GROUP = {"name": "g", "spark": False, "steps": [{"python": "shop.steps:price"}]}
STEP = """
import os
import discounts

def price(spark, ctx, base=1{more}):
    ctx.result("pid", os.getpid())
    ctx.result("price", {price})
"""


class PackageProject:
    """A project with a package of steps, a module that stands beside it, and a worker that runs its
    steps.
    """

    def __init__(self, client: redis.Redis, url: str, folder: Path) -> None:
        self.client, self._url, self._folder = client, url, folder
        self._jobs = 0
        (folder / "shop").mkdir()
        (folder / "shop" / "__init__.py").touch()
        self.write("discounts.py", "RATE = 0\n")
        self.deploy("base")

    def write(self, name: str, text: str) -> Path:
        """Write a file; by another name first, as most deploys do."""
        path = self._folder / name
        (self._folder / "new").write_text(text)
        os.replace(self._folder / "new", path)
        return path

    def deploy(self, price: str, more: str = "") -> Path:
        return self.write("shop/steps.py", STEP.format(price=price, more=more))

    @property
    def path(self) -> str:
        return os.pathsep.join((str(self._folder), PYTHONPATH))

    def worker(self, **options: Any) -> Any:
        folder = self._folder / "worker"
        folder.mkdir(exist_ok=True)
        return fleet.worker(self._url, folder, environ={"PYTHONPATH": self.path}, **options)

    def offer(self, **options: Any) -> Offer:
        self._jobs += 1
        return fleet.make_offer(
            self.client, self._folder / "w", f"job{self._jobs}", GROUP, **options
        )

    def outcomes(self, *offers: Offer) -> list[Outcome]:
        """The outcomes of these offers. Wake-ups are sent again, as every sweep does."""

        def ended() -> bool:
            if not self.client.llen(fleet.KEYS.queue("light")):
                fleet.wake(self.client, "light")
            return all("outcome" in fleet.attempt(self.client, offer) for offer in offers)

        wait_until(ended, 60, "all outcomes")
        return [fleet.outcome(self.client, offer) for offer in offers]

    def runs(self, **params: Any) -> dict[str, Any]:
        """The results of a job with these parameters, whose first attempt that begins succeeds."""
        (outcome,) = self.outcomes(self.offer(params=params))
        while (
            outcome.kind is OutcomeKind.RELEASED
        ):  # by a runner that found other code; a coordinator offers it anew
            (outcome,) = self.outcomes(self.offer(params=params))
        assert outcome.kind is OutcomeKind.SUCCEEDED, outcome.failure
        return outcome.results


@pytest.fixture
def shop(client: redis.Redis, redis_server: RedisServer, tmp_path: Path) -> PackageProject:
    return PackageProject(client, redis_server.url, tmp_path)


@pytest.mark.claim("No step runs older code than the files on disk.")
def test_changed_code_is_reimported_before_work_is_taken(shop: PackageProject) -> None:
    with shop.worker() as worker:
        first, same = shop.runs(), shop.runs()
        assert first["price"] == 1
        assert same["pid"] == first["pid"], "nothing changed, so nobody is replaced"

        shop.deploy("base - cut", more=", cut=0")
        assert shop.runs(base=9, cut=2)["price"] == 7
        assert "steps.py has changed since this runner loaded it" in worker.text()

        shop.write("discounts.py", "RATE = 0.5\n")  # of no package that a step names
        shop.deploy("base * discounts.RATE")
        assert shop.runs(base=8)["price"] == 4
        shop.write("discounts.py", "RATE = 0.25\n")
        assert shop.runs(base=8)["price"] == 2


@pytest.mark.claim("No step runs older code than the files on disk.")
@pytest.mark.variant
def test_a_runner_with_outdated_code_does_not_take_the_next_offer_with_its_outcome(
    shop: PackageProject,
) -> None:
    with shop.worker() as worker:
        changes = f"open({str(shop.deploy('base'))!r}, 'a').write('# more\\n') and base"
        shop.deploy(changes)
        offers = [shop.offer(params={"base": n}, send=False) for n in (1, 2)]
        for offer in offers:
            fleet.stand(shop.client, offer, "light")
        results = [one.results for one in shop.outcomes(*offers)]
        assert [one["price"] for one in results] == [1, 2]
        assert results[0]["pid"] != results[1]["pid"], worker.text()


@pytest.mark.claim("No step runs older code than the files on disk.")
@pytest.mark.variant
def test_changed_code_that_was_loaded_before_the_fork_is_reimported(shop: PackageProject) -> None:
    """Each runner is forked with the modules of the main process of its worker."""
    with shop.worker(arguments=["--include", "shop.steps"]):
        assert shop.runs(base=3)["price"] == 3
        shop.deploy("base * 10")
        again = shop.runs(base=3)
        assert again["price"] == 30
        assert shop.runs(base=4)["pid"] == again["pid"], "a change replaces a runner once"


@pytest.mark.variant
def test_a_constantly_changing_file_does_not_block_work(shop: PackageProject) -> None:
    with shop.worker():
        path = shop.deploy("base")
        pids = set()
        for n in range(3):
            os.utime(path)
            pids.add(shop.runs(base=n)["pid"])
        assert len(pids) >= 2


def test_code_that_failed_to_import_is_read_again(shop: PackageProject) -> None:
    """Its digest stood for the code that ran after the next deploy: in `unstuck fleet`, and in the
    marker.
    """

    def shown() -> str:
        return next(
            (one.code["shop"] for one in fleet.listed(shop.client) if "shop" in one.code), ""
        )

    with shop.worker() as worker:
        shop.deploy("(")
        (outcome,) = shop.outcomes(shop.offer())
        assert outcome.failure is not None
        assert outcome.failure.code == "STEP_NOT_FOUND"
        broken = wait_until(shown, 30, "the fleet to show the code that was looked at")
        changed = shop.deploy("base").stat().st_ctime
        # A runner that looks right after a change cannot tell which came first, so it is replaced
        # after its job.
        wait_until(lambda: time.time() > changed + 0.1, 10, "the change to be old")
        (runner,) = worker.runners
        assert shop.runs()["pid"] == runner.pid, "it has loaded nothing that changed"
        wait_until(lambda: shown() not in ("", broken), 30, "the fleet to show the code that ran")


@pytest.mark.variant
def test_a_moved_module_is_imported_from_its_new_place(
    shop: PackageProject, tmp_path: Path
) -> None:
    with shop.worker():
        first = shop.runs(base=2)
        (tmp_path / "shop" / "steps.py").rename(tmp_path / "away.py")
        assert shop.runs(base=2)["pid"] == first["pid"], (
            "a deploy that is under way takes no work away"
        )
        (tmp_path / "shop" / "steps").mkdir()
        shop.write("shop/steps/__init__.py", STEP.format(price="base * 7", more=""))
        assert shop.runs(base=2)["price"] == 14
