"""The alert rules and the dashboard in ``deploy/``: each expression is PromQL, on metrics and
labels that exist.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import promql_parser
import pytest
import yaml
from promql_parser import AggregateExpr, BinaryExpr, MatrixSelector, VectorSelector

from tests.support.paths import ROOT
from unstuck.cli.app import imported
from unstuck.coordinator.model.schedule_record import ScheduleStatus
from unstuck.coordinator.model.status import Status
from unstuck.doctor.process_health import Role
from unstuck.metrics.catalog import CATALOG
from unstuck.tasks.protocol.report import OutcomeKind

RULES = yaml.safe_load((ROOT / "deploy/prometheus/unstuck.rules.yml").read_text())["groups"][0][
    "rules"
]
DASHBOARD = json.loads((ROOT / "deploy/grafana/unstuck.json").read_text())
ALERTS = {rule["alert"]: rule["expr"] for rule in RULES}
PANELS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
LABELS = {
    name: {*spec.labels, *(["le"] if name.endswith("_bucket") else [])}
    for spec in CATALOG
    for name in spec.samples
}
OF_PROMETHEUS = {"instance", "job", "pod"}  # labels that it gives to all that it scrapes
# Values of the labels that are words of ours.
WORDS = {
    ("unstuck_jobs", "status"): {status.lower() for status in Status},
    ("unstuck_jobs_ended_total", "status"): {
        status.lower() for status in Status if status.terminal
    },
    ("unstuck_schedules", "status"): {status.lower() for status in ScheduleStatus},
    ("unstuck_processes", "role"): {"coordinator", "runner"},
    ("unstuck_processes", "state"): {"live", "idle", "busy", "stopping", "unfit", "silent"},
    ("unstuck_attempts_ended_total", "outcome"): {*OutcomeKind, "taken_over"},
    ("unstuck_scrape_left_out", "reason"): {"unreadable", "too_many"},
    ("unstuck_undecided_oldest_age_seconds", "of"): {"reports", "jobs", "schedules"},
}


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield expression
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from parts(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from parts(inner)


def problems(text: str) -> list[str]:
    """The metrics, labels and words of ours in an expression that do not exist."""
    found, met, grouped = [], set[str](), set[str]()
    for part in parts(promql_parser.parse(text)):
        if isinstance(part, MatrixSelector):
            continue
        if isinstance(part, VectorSelector):
            labels = LABELS.get(part.name)
            if labels is None:
                found.append(f"no metric {part.name}")
                continue
            met |= labels
            for matcher in part.matchers.matchers:
                if matcher.name not in labels:
                    found.append(f"{part.name} has no label {matcher.name}")
                words = WORDS.get((part.name, matcher.name))
                if words is not None and not set(matcher.value.split("|")) <= words:
                    found.append(f"{matcher.name} of {part.name} is never {matcher.value}")
        modifier = getattr(part, "modifier", None)
        if isinstance(part, AggregateExpr) and modifier is not None:
            grouped |= set(modifier.labels)
        elif (
            isinstance(part, BinaryExpr) and modifier is not None and modifier.matching is not None
        ):
            grouped |= set(modifier.matching.labels)
    return found + [
        f"no metric of it has the label {label}" for label in sorted(grouped - met - OF_PROMETHEUS)
    ]


@pytest.mark.parametrize("name", [*ALERTS, *PANELS])
def test_every_expression_uses_existing_metrics_and_labels(name: str) -> None:
    assert problems({**ALERTS, **PANELS}[name]) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("unstuck_nothing > 1", "no metric unstuck_nothing"),
        (
            "rate(unstuck_jobs_ended_total{state='failed'}[5m])",
            "unstuck_jobs_ended_total has no label state",
        ),
        ("unstuck_jobs{status='broken'}", "status of unstuck_jobs is never broken"),
        ("sum by (queue) (unstuck_jobs)", "no metric of it has the label queue"),
        (
            "unstuck_queue_free_slots and on (pol) unstuck_queue_free_slots",
            "no metric of it has the label pol",
        ),
    ],
)
def test_an_expression_that_can_never_fire_is_detected(wrong: str, why: str) -> None:
    assert problems(wrong) == [why]


def test_the_texts_of_an_alert_use_existing_labels() -> None:
    for rule in RULES:
        text = " ".join(rule["annotations"].values())
        metrics = {
            part.name
            for part in parts(promql_parser.parse(rule["expr"]))
            if isinstance(part, VectorSelector)
        }
        labels = {label for metric in metrics for label in LABELS[metric]}
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "help"}


def test_a_missing_exporter_and_an_unreachable_redis_have_their_own_alerts() -> None:
    assert ALERTS["UnstuckExporterGone"] == "absent(unstuck_up)"
    assert ALERTS["UnstuckRedisAway"] == "unstuck_up == 0"


def test_the_first_failure_of_a_name_is_detected_although_its_series_is_new() -> None:
    for expression in ALERTS.values():
        for metric in re.findall(r"increase\((\w+){", expression):
            if metric == "unstuck_attempts_ended_total":
                continue  # all its outcomes are shown from the start, as are metrics without labels
            assert f"unless ignoring (instance, pod) {metric}{{" in expression, (
                "increase() sees nothing of a first value"
            )


def test_panels_have_unique_numbers_and_positions() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def containers() -> list[dict[str, Any]]:
    """Those of the pods for Kubernetes."""
    pods = yaml.safe_load_all((ROOT / "deploy/kubernetes/unstuck.yaml").read_text())
    return [
        one
        for pod in pods
        if pod["kind"] == "Deployment"
        for one in pod["spec"]["template"]["spec"]["containers"]
    ]


def test_the_kubernetes_and_compose_pages_use_existing_options_and_a_token() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    (pod,) = [one for one in containers() if one["name"] == "web"]
    for command in (pod["command"], shlex.split(compose["services"]["web"]["command"])):
        assert command[:2] == ["unstuck", "web"]
        context = imported("web").make_context("web", command[2:])
        assert context.params["address"] == "0.0.0.0:8620"
        assert context.params["token_file"]
    assert pod["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 8620}
    assert compose["services"]["web"]["ports"] == ["127.0.0.1:8620:8620"], (
        "this host alone reaches it"
    )
    assert set(compose["services"]["web"]["secrets"]) <= set(compose["secrets"])


def test_the_kubernetes_and_compose_probes_are_existing_commands() -> None:
    probes = [one["livenessProbe"] for one in containers() if "livenessProbe" in one]
    lines = [probe["exec"]["command"][-1] for probe in probes if "exec" in probe]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    checks = [one["healthcheck"]["test"][1:] for one in services if "healthcheck" in one]
    asked = [line.partition(";")[0].split() for line in lines] + [
        check for check in checks if check[0] == "unstuck"
    ]
    assert {words[2] for words in asked} == set(get_args(Role))
    for _, command, role, *options in asked:
        assert command == "health"
        assert role in get_args(Role)
        assert options in ([], ["--max-age", "60s"])
    assert all(line.endswith("; test $? -ne 1") for line in lines), (
        "a Redis that is away restarts no pod"
    )
