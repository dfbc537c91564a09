"""Finds the Redis of the local fleet of this folder, whose address `unstuck up` writes."""

from __future__ import annotations

from pathlib import Path

from unstuck.tasks.settings import Settings

DEFAULT_HOME = Path(".unstuck")


def address_file(home: Path) -> Path:
    """Where other processes of this user read the address of the fleet that runs in ``home``."""
    return home / "redis.url"


def address_of(home: Path) -> str | None:
    """Return the address of the fleet that runs, or crashed, in ``home``; else None."""
    try:
        return address_file(home).read_text().strip() or None
    except OSError:
        return None


def with_local_fleet(settings: Settings) -> Settings:
    """``settings``, with the Redis of the local fleet of this folder where they name none.

    A local fleet that does not answer is nevertheless the one: nobody must reach another without a
    word.
    """
    local_url = (
        None if "redis_url" in settings.model_fields_set else address_of(DEFAULT_HOME.resolve())
    )
    return settings.model_copy(update={"redis_url": local_url}) if local_url else settings
