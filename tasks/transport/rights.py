"""List the rights that a fleet needs of a Redis, and those that a user lacks, as ACL rules.

Each command is tried inside a transaction that is thrown away: Redis checks the rights when it
queues a command, so nothing is changed, and the right to ask ACL is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import redis
from redis.exceptions import NoPermissionError

from unstuck.tasks.protocol.keys import Keys

# Of ours, of kombu and of RedBeat, also those that scripts call; K: a key. A test compares them
# with what a fleet runs.
COMMANDS = """
DEL K|EXISTS K|EXPIRE K 1|PEXPIRE K 1|PTTL K|GET K|SET K v
HDEL K f|HEXISTS K f|HGET K f|HGETALL K|HINCRBY K f 1|HKEYS K|HLEN K|HMGET K f|HSET K f v
HSETNX K f v|HVALS K
LINDEX K 0|LLEN K|LPOP K|LRANGE K 0 0|LPUSH K v|LPUSHX K v|RPUSH K v|RPOP K|BLPOP K 1|BRPOP K 1
SADD K m|SMEMBERS K|SREM K m
ZADD K 1 m|ZCARD K|ZLEXCOUNT K [a [b|ZRANGE K 0 0|ZRANGEBYLEX K [a [b|ZRANGEBYSCORE K 0 1
ZRANK K m|ZREM K m
ZREMRANGEBYSCORE K 0 1|ZREVRANGE K 0 0|ZREVRANGEBYSCORE K 1 0|ZSCORE K m
XACK K g 0-1|XADD K * f v|XAUTOCLAIM K g c 0 0|XDEL K 0-1|XLEN K|XPENDING K g
XRANGE K - +|XREVRANGE K + -
XREAD STREAMS K 0|XREADGROUP GROUP g c STREAMS K >|XTRIM K MAXLEN 1|XINFO GROUPS K|XINFO CONSUMERS K
XGROUP CREATE K g 0|XGROUP CREATECONSUMER K g c|XGROUP DELCONSUMER K g c
EVAL x 1 K|EVALSHA x 1 K|SCRIPT LOAD x|SCRIPT EXISTS x|PING|SCAN 0|TIME
"""
DOCTOR = ("INFO",)


def lacking_rights(client: redis.Redis, keys: Keys, more: Sequence[str] = ()) -> list[str]:
    """Return the ACL rules that the user of ``client`` lacks; ``more``: further commands.

    Raises:
        redis.RedisError: the store could not be asked.
    """
    database = client.connection_pool.connection_kwargs.get("db") or 0
    # Redis wants the pattern of a PSUBSCRIBE spelled out in a rule: a wider one does not give it.
    control = f"{keys.broker}/{database}.celery.pidbox"
    commands = [
        *(
            [word if word != "K" else keys.nothing for word in command.split(" ")]
            for command in _commands(more)
        ),
        # The other kinds of keys: of a job, of the broker, of beat.
        *(["SET", key, ""] for key in (keys.of("J").job, keys.queue("light"), f"{keys.beat}:lock")),
        *([word, keys.cancel("J"), *more] for word, more in (("PUBLISH", [""]), ("SUBSCRIBE", []))),
        ["PUBLISH", control, ""],
        ["PSUBSCRIBE", control],
        ["PUNSUBSCRIBE", control],
        ["UNSUBSCRIBE", control],
    ]
    connection = client.connection_pool.get_connection()
    try:
        # WATCH and MULTI first: without a transaction the others would be done.
        rules = _refused(connection, [["WATCH", keys.nothing], ["MULTI"]], keys)
        if "+multi" not in rules:
            rules += _refused(connection, commands, keys)
            rules += _refused(connection, [["DISCARD"]], keys)
            if "+discard" not in rules:
                rules += _refused(connection, [["EXEC"], ["UNWATCH"]], keys)
    finally:
        connection.disconnect()  # type: ignore[no-untyped-call]  # with it goes the transaction
        client.connection_pool.release(connection)
    return list(dict.fromkeys(rules))


def _commands(more: Iterable[str]) -> list[str]:
    return [*re.split(r"[|\n]", COMMANDS.strip()), *more]


def _refused(connection: redis.Connection, commands: list[list[str]], keys: Keys) -> list[str]:
    packed = connection.pack_commands(commands)  # type: ignore[no-untyped-call]
    connection.send_packed_command(packed)  # type: ignore[no-untyped-call]
    rules = []
    for command in commands:
        try:
            connection.read_response()
        except redis.ResponseError as error:
            # Redis wraps the refusal of an EXEC. Any other error says that the command may be
            # asked, and is wrong here.
            if isinstance(error, NoPermissionError) or "permissions to" in str(error):
                rules.append(_rule(str(error), command, keys))
    return rules


def _rule(refusal: str, command: list[str], keys: Keys) -> str:
    if named := re.search(r"run the '([^']+)' command", refusal):
        return f"+{named[1].lower()}"
    if "channel" in refusal:
        return f"&{command[1]}" if command[0] == "PSUBSCRIBE" else f"&{keys.prefix}:*"
    return f"~{keys.prefix}:*"
