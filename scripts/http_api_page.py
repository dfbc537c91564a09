"""Make the reference of the HTTP API from its OpenAPI document.

``scripts.generated_pages`` writes it. A test runs every example in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from unstuck.web.api.api_app import PREFIX, api_app

THREE_DAYS = '{"from": "2026-01-01", "to": "2026-01-03"}'
HEAD = f"""\
# The HTTP API

`unstuck web` [serves it](web.md) at `{PREFIX}`. It answers what `--json` of the [command line](cli.md) prints, and
takes the same actions. The OpenAPI document is at `{PREFIX}/openapi.json`. This page is generated
from it, and a test runs the examples.

- **Who may call.** As for [the page](web.md#who-may-see-it-and-who-may-act): a page with a token
  answers those who send it. One without a token answers callers of its own host, and takes no action from programs,
  since a spec is code. A browser acts from the page alone.
- **A job** is named as on the command line: by its id, the beginning of its id, or its name, which means its newest
  job. To look, its key and `last` do as well. An action that may be sent again takes the id, since a name may mean
  another job by then.
- **Times** are ISO 8601 in UTC with `Z`, or null. Each field of an answer is always there, except
  that a list of jobs lacks the fields which only a job alone has.
- **Actions** are POST. They are safe to repeat; a submit is under a `key`. `by` and `reason` go into the event log; who
  is logged in is named by the login.
- **Errors** are [problem details](https://www.rfc-editor.org/rfc/rfc9457), `application/problem+json`. `detail` is the
  sentence of the command line. `code` is there to compare. `problems` names each place in a spec or in the request.
- **A spec that is sent** is checked as at submit. `POST /validate` checks it and its SQL, answers as `unstuck validate
  --json` does, also for a wrong spec, and stores nothing. It needs the token that a submit needs, and a page with
  `--read-only` refuses it: to parse SQL it starts a process, and where there is Spark a JVM, one at a time. It imports
  no code of steps: for that there is `unstuck validate --imports`.
- **ETag.** Each answer to a GET has one. A call with `If-None-Match` is answered with 304, and without a body, while
  nothing has changed.

| status | exit code of the command line | |
|---|---|---|
| 404 | 3 | there is no such job, group, schedule, dataset or dead letter |
| 409 | 4 | the state does not allow this, or the word for the job fits several: `AMBIGUOUS`, exit code 2 |
| 422 | 2 | the request or the spec is wrong; nothing was changed |
| 503 | 5 | Redis or the warehouse cannot be reached, or refuses us |
| 401, 403, 413, 421 | | the request is not let in: no token, another site or `--read-only`, too long, another name |

## Examples

```sh
API=http://127.0.0.1:8620{PREFIX}
AUTH="Authorization: Bearer $(cat token)"

# Submit a spec, under a key; the same again is the same job.
curl -sS --fail-with-body -H "$AUTH" --data-binary @sales.yaml "$API/jobs?key=sales-2026-01-02&param=day=2026-01-02"

# Jobs of the last day that are not well.
curl -sS --fail-with-body -H "$AUTH" "$API/jobs?status=FAILED&status=HALTED&since=1d"
```

With the id of a job in `JOB`:

```sh
# What does it wait for? Where does it stand?
curl -sS --fail-with-body -H "$AUTH" "$API/jobs/$JOB/why"
curl -sS --fail-with-body -H "$AUTH" "$API/jobs/$JOB"

# The last lines of its logs, and its events from the beginning. -g, since curl reads brackets as ranges.
curl -sSg --fail-with-body -H "$AUTH" "$API/jobs/$JOB/logs?tail=20"
curl -sSg --fail-with-body -H "$AUTH" "$API/jobs/$JOB/logs/load?all=true"
curl -sS --fail-with-body -H "$AUTH" "$API/jobs/$JOB/events?after=-&limit=100"

# Its graph, as a picture.
curl -sS --fail-with-body -H "$AUTH" -o graph.svg "$API/jobs/$JOB/graph.svg"

# Pause it, and go on.
curl -sS --fail-with-body -H "$AUTH" --json '{{"reason": "the disk is full", "by": "ann"}}' "$API/jobs/$JOB/pause"
curl -sS --fail-with-body -H "$AUTH" --json '{{"values": {{"groups.load.timeout": "2h"}}}}' "$API/jobs/$JOB/alter"
curl -sS --fail-with-body -H "$AUTH" -X POST "$API/jobs/$JOB/resume"
```

Schedules, what is published, and the fleet:

```sh
curl -sS --fail-with-body -H "$AUTH" --data-binary @nightly.yaml "$API/schedules?reason=nightly+at+two"
curl -sS --fail-with-body -H "$AUTH" "$API/schedules/nightly?next=5"
curl -sS --fail-with-body -H "$AUTH" --json '{THREE_DAYS}' "$API/schedules/nightly/backfill"
curl -sS --fail-with-body -H "$AUTH" "$API/datasets/sales"
curl -sS --fail-with-body -H "$AUTH" "$API/doctor"

# Ask again only if something has changed.
curl -sS --fail-with-body -H "$AUTH" --etag-save tag --etag-compare tag "$API/schedules"
```

A wrong spec is answered with its places, and stores nothing. To check one without a submit, validate it:

```sh
curl -sS --fail-with-body -H "$AUTH" --data-binary @sales.yaml "$API/validate"
curl -sS -H "$AUTH" --data-binary @wrong.yaml "$API/jobs"
```
"""


def document() -> dict[str, Any]:
    return api_app(SimpleNamespace(read_only=False)).openapi()


def page() -> str:
    """The whole page."""
    made = document()
    parts, tag = [HEAD.rstrip()], ""
    for route, methods in made["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                parts.append(f"## Routes: {tag}")
            parts.extend(_route(route, method, operation))
    parts.append("## Documents")
    for name, schema in made["components"]["schemas"].items():
        parts.extend(_document(name, schema))
    return "\n\n".join(parts) + "\n"


def _route(route: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {route}"
    yield operation["description"]
    rows = [
        (
            f"| `{one['name']}` | {_type(one['schema'])} | "
            f"{_told(one['schema'], one.get('description', ''))} |"
        )
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    ]
    if rows:
        yield "\n".join(["| query | | |", "|---|---|---|", *rows])
    content = operation.get("requestBody", {}).get("content", {})
    if "application/yaml" in content:
        yield "Sent: a [job spec](spec.md), as YAML or JSON."
    elif content:
        yield f"Sent: {_type(content['application/json']['schema'])}, as JSON."
    codes = ((code, one) for code, one in operation["responses"].items() if code.startswith("2"))
    yield "\n".join(f"Answer ({code}): {_answer(one['content'])}." for code, one in codes)


def _answer(content: dict[str, Any]) -> str:
    kind, described = next(iter(content.items()))
    return _type(described["schema"]) if "schema" in described else f"`{kind}`"


def _document(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield " ".join(schema["description"].replace("``", "`").split())
    if "enum" in schema:
        yield "One of " + ", ".join(f"`{one}`" for one in schema["enum"]) + "."
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | "
        f"{_type(one)}{'' if field in required else ', may be left out' * name.endswith('Body')} | "
        f"{_told(one, one.get('description', ''))} |"
        for field, one in schema.get("properties", {}).items()
    ]
    if rows:
        yield "\n".join(["| field | | |", "|---|---|---|", *rows])


def _type(schema: dict[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        inner = schema.get("items") or {}
        return f"list of {_type(inner)}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    return "time" if schema.get("format") == "date-time" else str(kind)


def _told(schema: dict[str, Any], text: str) -> str:
    """Its description, its bounds, and its default."""
    parts = [text] if text else []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        parts.append(f"From {low:,}{'' if high is None else f' to {high:,}'}.")
    default = schema.get("default")
    if default not in (None, "", [], {}):
        parts.append(
            f"By default `{str(default).lower() if isinstance(default, bool) else default}`."
        )
    return " ".join(parts).replace("|", "\\|")
