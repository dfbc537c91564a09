"""Set the time zone of attempts in the process, its JVM, its sessions and Python tasks.

An attempt has the zone of its job (``zone:`` of its schedule, or of the job itself), else that of
the fleet.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

from unstuck.tasks.errors import HostUnfit

UTC = "UTC"
SESSION_ZONE = "spark.sql.session.timeZone"
_JAVA_ZONE = re.compile(r"-Duser\.timezone=([^\s\"']*)")
# With and without daylight saving time.
_INSTANTS = [datetime(2024, month, 1).timestamp() for month in (1, 4, 7, 10)]


def checked_zone(name: str) -> str:
    """``name``. Raises: ValueError: it is no time zone."""
    try:
        # Not posix/… nor right/…, which Java does not know.
        if name == UTC or (re.match("[A-Z][A-Za-z_]*/", name) and ZoneInfo(name)):
            return name
    except (ValueError, KeyError, OSError):
        pass
    raise ValueError(
        f"{name!r} is no time zone; expected UTC, or a name of IANA such as Europe/Berlin"
    )


def use_zone(zone: str) -> None:
    """Make ``zone`` the time zone of this process and of those that it starts.

    Raises:
        HostUnfit: the C library of this host does not know it; without a word it would take UTC.
    """
    os.environ["TZ"] = zone
    time.tzset()
    zoned = [datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None) for at in _INSTANTS]
    if zoned != [datetime.fromtimestamp(at) for at in _INSTANTS]:
        raise HostUnfit(
            f"this host has no data of the time zone {zone} (UNSTUCK_TIME_ZONE, or zone: of the "
            "job): install its package tzdata"
        )


def zone_here() -> str:
    """The time zone of this process, as `use_zone` made it."""
    return os.environ.get("TZ") or UTC


@contextmanager
def in_zone(zone: str) -> Iterator[None]:
    """Use ``zone`` as the time zone of this process during the block.

    Raises: HostUnfit: as `use_zone`.
    """
    before = os.environ.get("TZ")
    use_zone(zone)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = before
        time.tzset()


def conf_of_zone(zone: str) -> dict[str, str]:
    """Spark conf that gives sessions and executors this zone.

    The JVM of the driver has the variable of its parent.
    """
    return {SESSION_ZONE: zone, **executors_in_zone(zone)}


def executors_in_zone(zone: str) -> dict[str, str]:
    """Spark conf that gives new executors this zone."""
    return {
        "spark.executorEnv.TZ": zone,
        "spark.executor.defaultJavaOptions": f"-Duser.timezone={zone}",
    }


def other_zone(conf: Mapping[str, str], zone: str, whose: str = "this fleet") -> str:
    """Name what in ``conf`` would make a second time zone, in a sentence; empty if nothing would.

    ``whose``: who has the ``zone``.
    """
    for key, value in conf.items():
        if key in (SESSION_ZONE, "spark.executorEnv.TZ"):
            zones = [value]
        else:
            zones = _JAVA_ZONE.findall(value) if key.endswith("JavaOptions") else []
        # What the environment of a worker says is known there.
        if other := next(
            (
                candidate
                for candidate in zones
                if candidate != zone and not candidate.startswith("${")
            ),
            "",
        ):
            return (
                f"{key} is {other}, and the time zone of {whose} is {zone}. With two zones, Spark "
                "and Python would read a time without a zone differently: leave this out, and set "
                "zone: of the schedule or of the job, or UNSTUCK_TIME_ZONE for all processes"
            )
    return ""
