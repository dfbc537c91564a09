"""Defines the settings, which are read from ``UNSTUCK_*`` variables.

Each has one default, and its unit is in its type.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from unstuck.tasks.duration import Seconds
from unstuck.tasks.errors import SettingsInvalid
from unstuck.tasks.log_lines import LogAs, one_line
from unstuck.tasks.redis_url import redis_address
from unstuck.tasks.time_zone import UTC, checked_zone, other_zone

DEFAULT = "default"  # in UNSTUCK_KEEP_VERSIONS: all warehouses that are not named
# Seconds; for what a worker does once its attempts have ended, such as ending its processes.
LAST_STEPS = 5.0


def absolute(uri: str) -> str:
    """Return an absolute path, relative to the working folder; a URI (``s3://…``) is unchanged."""
    return uri if "://" in uri else str(Path(uri).expanduser().resolve())


def _place(uri: str) -> str:
    return without_user(absolute(uri)).rstrip("/")


def plain_path(uri: str) -> str:
    """Return ``/srv/a`` for ``file:///srv/a``; any other address is unchanged."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri


def without_user(uri: str) -> str:
    """Return ``uri``, which is shown to others.

    Raises: ValueError: it contains a user, or a key in its query.
    """
    scheme, _, rest = uri.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if rest and ("?" in rest or (at and (":" in user or not scheme.startswith("abfs")))):
        raise ValueError(
            f"the address {scheme}://… holds a user or a key. Addresses are stored and shown: give "
            "credentials to the processes, in the variables of their store (AWS_…, GOOGLE_…, "
            "AZURE_…) or by a role"
        )
    return uri


class Settings(BaseModel):
    """The settings of a process: ``UNSTUCK_LEASE_TTL=15s`` sets ``lease_ttl``.

    An empty variable counts as not set, because compose files and shells create these by accident.
    """

    model_config = ConfigDict(validate_default=True, hide_input_in_errors=True)

    redis_url: Annotated[str, AfterValidator(redis_address)] = "redis://localhost:6379/0"
    redis_ca: str | None = Field(
        default=None, description="PEM file of the CA that signed the certificate of Redis"
    )
    redis_cert: str | None = Field(
        default=None, description="PEM file of our own certificate, where Redis asks for one"
    )
    redis_key: str | None = Field(
        default=None, description="PEM file of the key of that certificate"
    )
    redis_verify: Literal["full", "none"] = Field(default="full", description="of a Redis with TLS")
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")] = "unstuck"
    warehouse: Annotated[str, AfterValidator(_place)] = "./warehouse"

    lease_ttl: Seconds = 15.0
    lease_renew: Seconds = 3.0
    lock_ttl: Seconds = 5.0
    report_idle: Seconds = 5.0
    sweep_every: Seconds = 1.0
    dispatch_timeout: Seconds = 10.0
    dispatch_window: int | None = Field(
        default=None,
        ge=1,
        description="unclaimed offers per job and queue; None: 4 x runners, at least 64",
    )
    cancel_grace: Seconds = 10.0
    drain_grace: Seconds = Field(
        default=20.0, description="how long attempts may go on once their worker is to stop"
    )
    stalled_after: Seconds = Field(
        default=60.0,
        description="who takes nothing from queues that are not empty ends itself; 0: never",
    )
    cancel_deadline: Seconds = 60.0
    session_timeout: Seconds = Field(
        default=300.0, description="how long a Spark session may take to start or to end"
    )
    session_idle: Seconds = Field(
        default=600.0, description="a Spark session that is not used for so long is ended; 0: never"
    )
    warehouse_timeout: Seconds = Field(
        default=600.0,
        description=(
            "how long a worker waits for an answer of the warehouse, before and after the steps"
        ),
    )
    stack_every: Seconds = Field(
        default=10.0,
        description=(
            "how often it is looked where a step stands, once it has run for so long; 0: never"
        ),
    )
    retention: Seconds = 7 * 86400.0
    keep_versions: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description=(
            "versions of each warehouse that are kept at least, or JSON with numbers by "
            "warehouse and default"
        ),
    )
    keep_versions_for: Seconds = Field(
        default=86400.0,
        description="with UNSTUCK_KEEP_VERSIONS: versions that were the newest since then stay too",
    )
    durability: Literal["everysec", "fsync", "replica"] = "everysec"
    log: LogAs = Field(
        default="text", description="how processes and attempts write their log lines"
    )

    notify: SecretStr | None = Field(
        default=None,
        description="targets and rules of notices: YAML or JSON, or the path of a file with it",
    )

    time_zone: Annotated[str, AfterValidator(checked_zone)] = Field(
        default=UTC,
        description="of runners, their JVM and their executors, whatever their host has",
    )
    spark_master: str = Field(
        default="local[*]", description="of every session; none: this worker runs no Spark"
    )
    spark_conf: dict[str, str] = Field(
        default_factory=dict, description="JSON; Spark conf of every session"
    )
    spark_prewarm: bool = Field(
        default=False, description="start the session with the worker, not with its first group"
    )
    step_modules: list[str] = Field(
        default_factory=list,
        description="comma-separated; modules a step may be imported from (empty: any)",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_the_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Add the variables that are set and not empty, in any case of letters, to ``values``."""
        variables = {name.upper(): text for name, text in os.environ.items() if text}
        names = {f"UNSTUCK_{name.upper()}": name for name in cls.model_fields}
        environment = {names[name]: variables[name] for name in names.keys() & variables.keys()}
        return environment | values

    @model_validator(mode="after")
    def _complete_the_address(self) -> Self:
        """The address alone has all that a connection needs."""
        tls = {
            "ssl_ca_certs": self.redis_ca,
            "ssl_certfile": self.redis_cert,
            "ssl_keyfile": self.redis_key,
        }
        if "redis_verify" in self.model_fields_set:  # else the address may say
            tls["ssl_cert_reqs"] = "none" if self.redis_verify == "none" else "required"
        if (address := redis_address(self.redis_url, tls)) != self.redis_url:
            self.redis_url = address
        return self

    @model_validator(mode="after")
    def _fit_the_lease(self) -> Self:
        """A shorter lease is set to recover sooner: intervals that are not set shorten with it."""
        for name, part in {
            "lease_renew": 5,
            "sweep_every": 5,
            "lock_ttl": 3,
            "report_idle": 3,
        }.items():
            if name not in self.model_fields_set:
                setattr(self, name, min(getattr(self, name), self.lease_ttl / part))
        return self

    @property
    def lock_term(self) -> float:
        """Seconds for which a coordinator locks a job or schedule: half of ``lock_ttl``.

        After a coordinator died, the other half is left for the next one.
        """
        return self.lock_ttl / 2

    @property
    def runner_silence(self) -> float:
        """Seconds after which a runner without a sign of life counts as silent."""
        return 3 * self.lease_renew + 1

    def versions_kept(self, warehouse: str) -> int | None:
        """Return how many versions of the warehouse at this URI are kept.

        None: all, until a vacuum.
        """
        return self.keep_versions.get(plain_path(warehouse), self.keep_versions.get(DEFAULT))

    def stop_within(self, *, at_once: bool = False) -> float:
        """Return the seconds in which a stopped worker ends; ``at_once``: without the grace."""
        return (0.0 if at_once else self.drain_grace) + self.cancel_grace + LAST_STEPS

    @field_validator("step_modules", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return (
            [part.strip() for part in value.split(",") if part.strip()]
            if isinstance(value, str)
            else value
        )

    @field_validator("keep_versions", mode="before")
    @classmethod
    def _by_warehouse(cls, value: object) -> object:
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            value = None
        if type(value) is int:
            return {DEFAULT: value}
        if isinstance(value, dict):
            return {
                name if name == DEFAULT else plain_path(_place(name)): number
                for name, number in value.items()
            }
        raise ValueError(
            f'expected a number, or JSON such as {{"/srv/a": 30, "s3://b/c": 7, "{DEFAULT}": 100}}'
        )

    @field_validator("spark_conf", mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(
                f'expected a JSON object such as {{"spark.driver.memory": "4g"}}: {error}'
            ) from None

    @field_validator("spark_conf")
    @classmethod
    def _one_zone(cls, conf: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if why := other_zone(conf, info.data.get("time_zone", UTC)):
            raise ValueError(why)
        return conf


def describe_invalid(error: ValidationError) -> str:
    """Describe each wrong setting: a line for each variable."""
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        name, *inside = map(str, item["loc"] or ("",))
        place = (
            f"UNSTUCK_{name.upper()}" + "".join(f"[{part!r}]" for part in inside) + ": "
            if name
            else ""
        )
        lines.append(f"{place}{item['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings of this process, which are read once. Raises: SettingsInvalid."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsInvalid(describe_invalid(error)) from None


def settings_or_leave() -> Settings:
    """Return the settings for a Celery program, or end it with code 2."""
    try:
        return settings()
    except SettingsInvalid as error:
        leave(str(error))


def leave(sentence: str, code: int = 2) -> NoReturn:
    """End a Celery program that cannot start, with ``sentence`` and exit code ``code``.

    An exception would not do: Celery shows those of an import with their traceback.
    """
    # The variable itself: the settings may be what cannot be read.
    as_json = os.environ.get("UNSTUCK_LOG") == "json"
    sys.stderr.write(
        f"{one_line('json', 'unstuck', 'CRITICAL', sentence) if as_json else sentence}\n"
    )
    raise SystemExit(code)


def whoami() -> str:
    """``host:pid`` of this process, as shown to people."""
    return f"{os.uname().nodename}:{os.getpid()}"
