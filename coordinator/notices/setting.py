"""``UNSTUCK_NOTIFY``: the targets of notices, with their secrets, and the rules of the fleet.

Coordinators read it, and so does a command that tests a target. No error or log contains the value
of a target, because the addresses of many services are secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from unstuck.coordinator.notices.addresses import Allowed, NotAllowed
from unstuck.coordinator.notices.channels.apprise import AppriseTarget
from unstuck.coordinator.notices.channels.celery_task import CeleryTask
from unstuck.coordinator.notices.channels.channel import NoticeChannel
from unstuck.coordinator.notices.channels.command import CommandTarget
from unstuck.coordinator.notices.channels.mail import Mail
from unstuck.coordinator.notices.channels.pagerduty import PagerDuty
from unstuck.coordinator.notices.channels.slack import Slack
from unstuck.coordinator.notices.channels.webhook import Webhook
from unstuck.coordinator.spec.messages import problems_of
from unstuck.coordinator.spec.notify_spec import ConditionWithValue, FleetRule, TargetName
from unstuck.coordinator.spec.problems import (
    Loc,
    SpecError,
    SpecProblem,
    listed,
    shorten,
    suggestion,
)
from unstuck.tasks.errors import SettingsInvalid, Unrecoverable
from unstuck.tasks.protocol.secrets import Secrets
from unstuck.tasks.protocol.texts import map_texts
from unstuck.tasks.settings import Settings
from unstuck.tasks.spec.fields import Listed, Strict

VARIABLE = "UNSTUCK_NOTIFY"
CHANNELS: dict[str, type[NoticeChannel]] = {
    channel.kind: channel
    for channel in (Webhook, Slack, PagerDuty, Mail, CommandTarget, CeleryTask, AppriseTarget)
}
_LONG_PATH = 12  # characters; a longer path of an address is looked for alone
_SHORTEST = 4  # characters; shorter texts occur in ordinary text


class _Written(Strict):
    targets: dict[TargetName, dict[str, Any]] = Field(default_factory=dict)
    rules: Listed[FleetRule] = ()
    page: str = ""
    allow: Listed[str] | None = None

    @field_validator("page")
    @classmethod
    def _is_a_page(cls, value: str) -> str:
        if value and (
            urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname
        ):
            raise ValueError(
                "expected the address of the page, such as https://unstuck.example.com"
            )
        return value


_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): _Written,
    ("rules",): FleetRule,
    ("rules", "on"): ConditionWithValue,
}


@dataclass(frozen=True, slots=True)
class NotifySetting:
    """The parsed setting. ``secrets`` removes its secrets from a text."""

    targets: Mapping[str, NoticeChannel] = field(default_factory=dict)
    rules: tuple[FleetRule, ...] = ()
    page: str = ""
    allowed: Allowed = field(default_factory=Allowed)
    secrets: Secrets = field(default_factory=Secrets, repr=False)

    def unknown(self, name: str) -> str:
        """Return the error message for an unknown target ``name``."""
        listing = f"it knows {listed(sorted(self.targets))}" if self.targets else "it knows none"
        return (
            f"no target {shorten(name)} is in {VARIABLE} of this coordinator; "
            f"{listing}{suggestion(name, self.targets)}. Add it there and restart the "
            "coordinators, or correct to: in the spec"
        )


def notify_setting(settings: Settings, environ: Mapping[str, str] | None = None) -> NotifySetting:
    """Read the setting. Raises: SettingsInvalid: with a line for each error."""
    if settings.notify is None or not (written := settings.notify.get_secret_value().strip()):
        return NotifySetting()
    try:
        if "\n" in written or "{" in written or ": " in written:
            return _read(written, VARIABLE, os.environ if environ is None else environ)
        try:
            text = Path(written).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise SpecError(
                [SpecProblem(f"the file {shorten(written)} cannot be read: {why}")]
            ) from None
        return _read(text, written, os.environ if environ is None else environ)
    except SpecError as error:
        lines = str(error).splitlines()
        named = (line if line.startswith(VARIABLE) else f"{VARIABLE}: {line}" for line in lines)
        raise SettingsInvalid("\n".join(named)) from None


def _read(text: str, source: str, environ: Mapping[str, str]) -> NotifySetting:
    """Parse the text. Raises: SpecError."""
    from unstuck.coordinator.spec.text import read_text

    try:
        reading = read_text(text, source)
    except SpecError as error:
        raise SpecError([_without_values(problem, ()) for problem in error.problems]) from None
    data = reading.root.value
    secrets = Secrets(environ)
    values = _values(data.get("targets")) if isinstance(data, dict) else []
    problems = [_without_values(problem, values) for problem in reading.problems]
    try:
        written = _Written.model_validate(data)
    except ValidationError as error:
        problems += [
            _without_values(problem, values) for problem in problems_of(error, data, _MODELS)
        ]
        written = _Written()
    targets = {}
    for name, target_fields in written.targets.items():
        target = _target(name, target_fields, secrets, written.allow)
        if isinstance(target, NoticeChannel):
            targets[name] = target
        else:
            problems += target
    problems += _unknown_targets(written)
    if problems:
        raise SpecError([reading.located(problem) for problem in problems])
    cleaner = Secrets.of({**secrets.values, **_inline(targets)})
    return NotifySetting(targets, written.rules, written.page, Allowed(written.allow), cleaner)


def _unknown_targets(written: _Written) -> Iterator[SpecProblem]:
    targets = listed(sorted(written.targets)) or "none"
    for i, rule in enumerate(written.rules):
        for name in rule.to:
            if name not in written.targets:
                hint = f"{suggestion(name, written.targets)}; known: {targets}"
                yield SpecProblem(f"there is no target {name!r}{hint}", ("rules", i, "to"))


def _target(
    name: str, fields: Mapping[str, Any], secrets: Secrets, allow: Iterable[str] | None
) -> NoticeChannel | list[SpecProblem]:
    place: Loc = ("targets", name)
    kinds = [kind for kind in CHANNELS if kind in fields]
    if len(kinds) != 1:
        expected = f"expected one of {listed(CHANNELS)}, which selects the channel"
        return [SpecProblem(f"{expected}, not {' and '.join(kinds)}" if kinds else expected, place)]
    try:
        data = secrets.resolve(dict(fields))
    except Unrecoverable as error:
        return [
            SpecProblem(
                str(error)
                .replace("this worker", "this process")
                .replace("the worker", "the process"),
                place,
            )
        ]
    kind = CHANNELS[kinds[0]]
    try:
        target = kind.model_validate(data)
    except ValidationError as error:
        errors = problems_of(error, data, {(): kind})
        return [
            replace(_without_values(problem, _values(data)), loc=(*place, *problem.loc))
            for problem in errors
        ]
    if allow is not None and kinds[0] == "apprise":
        message = "Apprise connects by itself, so allow: cannot restrict it; remove one of them"
        return [SpecProblem(message, (*place, "apprise"))]
    return target if allow is None else _allowed(target, Allowed(list(allow)), place)


def _allowed(
    target: NoticeChannel, allowed: Allowed, place: Loc
) -> NoticeChannel | list[SpecProblem]:
    """Return the target, or the problem that no network of ``allow:`` could contain its host."""
    for host in target.hosts:
        try:
            if not allowed.may_be_allowed(host):
                allowed.check(host, host)
        except NotAllowed as error:
            return [SpecProblem(str(error), place)]
    return target


def _without_values(problem: SpecProblem, values: Iterable[str]) -> SpecProblem:
    """Return ``problem`` without the values of targets."""
    if (
        problem.loc[:1] == ("targets",)
        and len(problem.loc) > 2
        and "without quotes" in problem.message
    ):
        return replace(
            problem,
            message="this value means different things to readers of YAML; put it in quotes",
        )
    message = problem.message
    for value in sorted((text for text in values if len(text) >= _SHORTEST), key=len, reverse=True):
        message = message.replace(shorten(value), "what is written there").replace(value, "…")
    return replace(problem, message=message)


def _values(data: Any) -> list[str]:
    """Yield each text in ``data`` except the keys of mappings."""
    texts: list[str] = []
    map_texts(data, lambda text: texts.append(text) or text)  # type: ignore[func-returns-value]
    return texts


def _inline(targets: Mapping[str, NoticeChannel]) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for name, target in targets.items():
        for number, secret in enumerate(target.secrets()):
            parts = urlsplit(secret) if "://" in secret else None
            path = f"{parts.path}{'?' if parts.query else ''}{parts.query}" if parts else ""
            for piece in (
                secret,
                parts.password if parts else "",
                path if len(path) >= _LONG_PATH else "",
            ):
                if piece and len(piece) >= _SHORTEST:
                    secrets[f"{VARIABLE}.{name}.{number}.{len(secrets)}"] = piece
    return secrets
