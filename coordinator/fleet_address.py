"""Finds the Redis of the local fleet of this folder, whose address `unstuck up` writes."""

from __future__ import annotations

from pathlib import Path

from unstuck.tasks.settings import Settings

DEFAULT_HOME = Path(".unstuck")


def address_file(home: Path) -> Path:
    """Return the file with the address of the fleet that runs in ``home``."""
    return home / "redis.url"


def address_of(home: Path) -> str | None:
    """Return the address of the fleet that runs, or crashed, in ``home``; else None."""
    try:
        return address_file(home).read_text().strip() or None
    except OSError:
        return None


def with_local_fleet(settings: Settings) -> Settings:
    """Return ``settings``; without a Redis URL, add that of the local fleet of this folder.

    This holds even if the local fleet does not answer, so that no command silently reaches another
    fleet.
    """
    local_url = (
        None if "redis_url" in settings.model_fields_set else address_of(DEFAULT_HOME.resolve())
    )
    return settings.model_copy(update={"redis_url": local_url}) if local_url else settings
