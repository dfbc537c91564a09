"""``unstuck notify`` tests a target, and shows sent and waiting notices."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from unstuck.cli.connection import connected, settings_here
from unstuck.cli.options import AsJson
from unstuck.cli.render.terminal import clock, emit, stderr, stdout, table
from unstuck.coordinator.errors import BadRequest
from unstuck.coordinator.model.notice import Notice
from unstuck.documents.envelopes import NoticeList
from unstuck.exits import ExitCode
from unstuck.tasks.identity import user_here
from unstuck.views.words import one_line

notify = typer.Typer(no_args_is_help=True)


@notify.command("test", epilog="Example: unstuck notify test ops")
def try_target(
    target: Annotated[str, typer.Argument(metavar="NAME", help="Of a target in UNSTUCK_NOTIFY.")],
    as_json: AsJson = False,
) -> None:
    """Send one notice to a target from this machine, and print the reply. Needs no Redis.

    Reads UNSTUCK_NOTIFY. An incident that would stay open, as in PagerDuty, is closed at once.
    Exits with 0 if the target accepted the notice, else with 1.
    """
    # Here, since all channels come with them, and no other command needs these.
    from unstuck.coordinator.notices.channels.channel import SendFailed
    from unstuck.coordinator.notices.message import message_of
    from unstuck.coordinator.notices.setting import VARIABLE, notify_setting

    setting = notify_setting(settings_here())
    if not setting.targets:
        raise BadRequest(
            f"{VARIABLE} is not set here, or names no target: give it the value of the coordinators"
        )
    if target not in setting.targets:
        raise BadRequest(setting.unknown(target).replace("of this coordinator", "here"))
    channel, trial = setting.targets[target], _trial(target)

    def send(notice: Notice) -> str:
        return channel.send(message_of(notice, setting.page, time.time()), setting.allowed)

    replies, sent, label = list[str](), True, ""
    try:
        replies.append(send(trial))
        if channel.stays_open:
            end = replace(trial, id=f"{trial.id}-end", event="recovered")
            replies.append(f"its end: {send(end)}")
    except SendFailed as error:
        sent = False
        label = "" if replies else "not sent: "
        what = "its end could not be sent, so it is open there: " if replies else ""
        replies.append(f"{what}{error}")
    reply = setting.secrets.clean("; ".join(replies))
    if as_json:
        emit({"target": target, "sent": sent, "reply": reply})
    else:
        console = stdout if sent else stderr
        console.print(Text(one_line(f"{target}: {label}{reply}")), soft_wrap=True)
    if not sent:
        raise typer.Exit(ExitCode.NOT_WELL)


def _trial(target: str) -> Notice:
    now = time.time()
    return Notice(
        id=f"test-{secrets.token_hex(8)}",
        to=(target,),
        event="finished",
        kind="job",
        name="notify-test",
        job="",
        problem=f"test/{target}",
        at=now,
        since=now,
        status="FINISHED",
        text=f"This is a test of the target {target}, sent by {user_here()}. Nothing has happened.",
        commands=("unstuck notify list",),
    )


@notify.command("list", epilog="Example: unstuck notify list --limit 20")
def list_notices(
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many of each.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List waiting notices, and sent ones with the newest first.

    `unstuck dead list` has the others.
    """
    with connected() as connection:
        waiting, sent = (
            connection.client.notices.waiting(limit),
            connection.client.notices.sent(limit),
        )
    if as_json:
        emit(NoticeList(waiting, sent))
        return
    if not (waiting or sent):
        stderr.print("No notices.")
        return
    if waiting:
        shown = table(
            "WAITS FOR", "SINCE", "EVENT", "OF", "TRIES", "NEXT TRY", "LAST SAID", right=("TRIES",)
        )
        for delivery in waiting:
            shown.add_row(
                delivery.to,
                clock(delivery.since),
                delivery.notice.event,
                Text(one_line(f"{delivery.notice.kind} {delivery.notice.name}")),
                str(delivery.tries),
                clock(delivery.next_at),
                Text(one_line(delivery.reply)),
            )
        stdout.print(shown)
    if sent:
        shown = table("SENT TO", "WHEN", "EVENT", "OF", "TRIES", "SAID", right=("TRIES",))
        for sent_notice in sent:
            of = Text(one_line(f"{sent_notice.notice.kind} {sent_notice.notice.name}"))
            shown.add_row(
                sent_notice.to,
                clock(sent_notice.at),
                sent_notice.notice.event,
                of,
                str(sent_notice.tries),
                Text(one_line(sent_notice.reply)),
            )
        stdout.print(shown)
