"""Load Lua scripts with the shared prelude, and with names for their keys and arguments.

A script declares these in its header, in lines that begin with ``-- keys:`` and ``-- args:``, and
reads them as ``keys.due`` and ``args.owner``. The scripts beside it that a line ``-- calls:`` names
are functions in it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.exceptions import NoScriptError

from unstuck.tasks.protocol.keys import Keys

_DECLARED = re.compile(r"^-- (keys|args|calls): (.+)$", re.MULTILINE)
_USED = re.compile(r"\b(keys|args)\.(\w+)")
_FUNCTION = re.compile(r"local function (\w+)")
_TABLES = {"keys": "KEYS", "args": "ARGV"}

Command = tuple[Any, ...]


class Script:
    """One script on one Redis (EVALSHA, loaded when missing).

    The keys that it declares are passed as keys. Keys of jobs and lanes that a script finds by
    itself are not.
    """

    def __init__(self, client: redis.Redis, keys: Keys, package: str, name: str) -> None:
        """``package``: the package beside whose modules ``lua/<name>.lua`` lies.

        A name may begin with a folder.
        """
        text, self._key_names, self._arg_names = load(package, name)
        self._known = {"job", *self._key_names, *self._arg_names}
        self._keys = keys
        self._client, self._script = client, client.register_script(text)

    def __call__(self, job: str = "", /, **values: Any) -> Any:
        """Run the script. ``job`` and ``values``: as for `command`. Raises: redis.RedisError."""
        return self.run(self.command(job, **values))[0]

    def command(self, job: str = "", /, **values: Any) -> Command:
        """A call of the script, to be sent by `run`.

        Args:
            job: the job whose keys are used; also the argument ``job``.
            values: the arguments, and the keys that are neither in `JobKeys` nor in `Keys`.

        Raises:
            TypeError: a name that the script declares has no value, or the other way round.
        """
        keys, args = self._arguments(job, values)
        return "EVALSHA", self._script.sha, len(keys), *keys, *args

    def run(self, *commands: Command) -> list[Any]:
        """Send ``commands``, of which the last one is a call of this script.

        Raises: redis.RedisError: the store could not be asked.
        """
        try:
            return ask(self._client, *commands)
        except NoScriptError:
            self._client.script_load(self._script.script)
            return ask(self._client, commands[-1])

    def _arguments(self, job: str, values: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        if not values.keys() <= self._known:
            raise TypeError(
                f"the script knows nothing of {', '.join(sorted(values.keys() - self._known))}"
            )
        of_all, of_job = vars(self._keys), vars(self._keys.of(job))
        args = {**values, "job": job}
        try:
            # Merging all keys takes longer than these lookups.
            keys = [
                of_job.get(name) or of_all.get(name) or values[name] for name in self._key_names
            ]
            return keys, [args[name] for name in self._arg_names]
        except KeyError as error:
            raise TypeError(f"the script needs a value for {error}") from error


def ask(client: redis.Redis, *commands: Command) -> list[Any]:
    """Send commands in one round trip, with the retries of ``client`` but without its telemetry.

    The telemetry takes a third of a call.

    Returns: the answers, as the server gave them.
    """
    connection: Any = client.connection_pool.get_connection()

    def once() -> list[Any]:
        connection.send_packed_command(connection.pack_commands(commands))
        return [_answer(connection) for _ in commands]

    try:
        answers: list[Any] = connection.retry.call_with_retry(
            once, lambda error: connection.disconnect()
        )
    except BaseException:
        # A signal may have left an answer unread, which would be taken for the next one.
        connection.disconnect()
        raise
    finally:
        client.connection_pool.release(connection)
    for answer in answers:
        if isinstance(answer, redis.ResponseError):
            raise answer
    return answers


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error  # the answers behind it are read, too


@cache
def load(package: str, name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A script as Redis gets it, and the names of its keys and of its arguments.

    Only the functions of the prelude that the script uses come with it, and each name is replaced
    by its number: a function that is made, or a table that is filled, would cost time in every
    call.
    """
    folder = files(package) / "lua"
    text = (folder / f"{name}.lua").read_text()
    declared: dict[str, list[str]] = {"keys": [], "args": [], "calls": []}
    for kind, names in _DECLARED.findall(text):
        declared[kind] += names.split()
    for called in declared["calls"]:
        function = called.rpartition("/")[2]
        text = (
            f"local function {function}(...)\n{(folder / f'{called}.lua').read_text()}end\n{text}"
        )
    _, *functions = (files(__package__) / "lua" / "prelude.lua").read_text().split("\n\n")
    for function in reversed(functions):  # each calls only functions that stand before it
        if (definition := _FUNCTION.search(function)) and re.search(rf"\b{definition[1]}\(", text):
            text = f"{function}\n{text}"

    def number(use: re.Match[str]) -> str:
        kind, word = use.groups()
        if word not in declared[kind]:
            raise ValueError(f"{name}.lua does not declare {use[0]}")
        return f"{_TABLES[kind]}[{declared[kind].index(word) + 1}]"

    return _USED.sub(number, text), tuple(declared["keys"]), tuple(declared["args"])
