"""The JSON schema of a job spec, for editors.

``python -m unstuck.coordinator.spec.json_schema`` writes its file. `JobSpec` also checks what a
schema cannot express.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unstuck.coordinator.spec.job_params import Param
from unstuck.coordinator.spec.model import JobSpec

ID = "urn:unstuck:job-spec"
FILE = Path(__file__).with_name("spec.schema.json")


def json_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema 2020-12) of what `JobSpec.from_file` reads."""
    schema = JobSpec.model_json_schema(by_alias=True)
    long_form = schema["$defs"]["JoinRule"]
    rules = long_form["properties"]["rule"]["enum"]
    # The short forms are read by a validator, which pydantic cannot look into.
    schema["$defs"]["JoinRule"] = {
        "description": long_form.pop("description"),
        "title": long_form.pop("title"),
        "anyOf": [
            {"type": "string", "enum": [rule for rule in rules if rule != "at_least"]},
            {
                "type": "object",
                "properties": {
                    "at_least": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "How many must have succeeded.",
                    }
                },
                "required": ["at_least"],
                "additionalProperties": False,
            },
            long_form,
        ],
    }
    after = schema["$defs"]["After"]
    schema["$defs"]["After"] = {
        "description": after.pop("description"),
        "title": after.pop("title"),
        "anyOf": [after["properties"]["any_of"]["anyOf"][0], after],
    }
    to = schema["$defs"]["NotifyRule"]["properties"]["to"]
    schema["$defs"]["NotifyRule"]["properties"]["to"] = {
        "description": to.pop("description"),
        "title": to.pop("title"),
        "anyOf": [to["items"], to],
    }
    for part in (schema, *schema["$defs"].values()):
        for field in part.get("properties", {}).values():
            # Pydantic names the keys that fit, but does not forbid the others.
            if "patternProperties" in field:
                field["additionalProperties"] = False
    # A plain default may be anything; the declaration is named for the help that editors give.
    schema["$defs"]["Param"] = Param.model_json_schema()
    (name,) = schema["properties"]["params"]["patternProperties"]
    schema["properties"]["params"]["patternProperties"][name] = {
        "anyOf": [{"$ref": "#/$defs/Param"}, {}]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": ID, **schema}


def schema_text() -> str:
    """Return the text of ``spec.schema.json``."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
