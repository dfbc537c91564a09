"""The fleet: ``celery -A tasks worker``. The one task it knows, and a runner in each of its children.

Celery looks for this module by name. It must never be imported by a coordinator, which sends hints through
``tasks.app`` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery import signals

from tasks.acking import Acknowledging
from tasks.app import app
from tasks.ears import Ears
from tasks.stopping import sign_of_this_worker

app.steps["consumer"].add(Acknowledging)


def _worker_half(module: str) -> Any:
    """A module that only a worker has the packages for. Imported when needed: a coordinator has no Spark."""
    return import_module(f"tasks.{module}")


@app.task(name="tasks.run")  # type: ignore[untyped-decorator]
def run(hint: str) -> str:
    """Run the attempt that ``hint`` offers, if it can be claimed; answers what became of it, for Celery's log."""
    answer: str = _worker_half("run").run(_worker_half("runner").this_runner(), hint)
    return answer


app.steps["consumer"].add(Ears)


# Signals are global to a process, and a coordinator's own worker imports this module too: every receiver below
# acts for workers of this app alone.
_slots: int | None = None


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _refuse_other_pools(sender: Any, **_: Any) -> None:
    if sender.app is not app:
        return
    from celery.concurrency import get_implementation

    if get_implementation(sender.pool_cls) is not get_implementation(app.conf.worker_pool):
        raise SystemExit(
            "celery -A tasks worker runs each attempt in a process of its own and needs the prefork pool: "
            "leave out -P/--pool, and give -c/--concurrency for more runners."
        )


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _count_slots(instance: Any, **_: Any) -> None:
    global _slots
    if instance.app is app:
        _slots = int(instance.concurrency)


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _start_runner(**_: Any) -> None:
    if _slots is not None:
        _worker_half("runner").start_runner(
            queues=sorted(app.amqp.queues.consume_from), slots=_slots, sign=sign_of_this_worker()
        )


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end_runner(**_: Any) -> None:
    if _slots is not None:
        _worker_half("runner").end_runner()
