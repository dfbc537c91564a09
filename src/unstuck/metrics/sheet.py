"""The sheet for the samples of the parts of a scrape, within the bounds of the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from unstuck.coordinator.store.totals import BUCKETS, Totals
from unstuck.metrics import catalog
from unstuck.metrics.catalog import Family, MetricSpec


class Sheet:
    """The samples of one scrape. ``at``: its time, in seconds by the clock of Redis."""

    def __init__(self) -> None:
        self.at = 0.0
        self._families: dict[str, Family] = {}
        self._left_out = Counter[tuple[str, str]]()

    def _family(self, metric: MetricSpec) -> Family:
        if metric.name not in self._families:
            self._families[metric.name] = metric.family()
        return self._families[metric.name]

    def add(self, metric: MetricSpec, value: float, *labels: str) -> None:
        """Add one sample of a metric with fixed labels."""
        family = self._family(metric)
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, float(value))

    def add_all(self, metric: MetricSpec, values: Iterable[tuple[Sequence[str], float]]) -> None:
        """Add one sample for each of ``values``; the first ones if there are too many."""
        samples = list(values)
        if (left := len(samples) - metric.most) > 0:
            self._left_out[metric.name, "too_many"] += left
        for labels, value in samples[: metric.most]:
            self.add(metric, value, *labels)

    def add_histogram(self, metric: MetricSpec, totals: Totals, *labels: str) -> None:
        """Add the times of ``totals`` as a histogram."""
        family = self._family(metric)
        assert isinstance(family, HistogramMetricFamily)
        ends = [*map(floatToGoString, BUCKETS), "+Inf"]
        family.add_metric(
            labels, list(zip(ends, accumulate(totals.buckets), strict=True)), totals.seconds
        )

    def age_since(self, at: float) -> float:
        """Return the seconds since ``at``; 0 if it is in the future: the clock was set back."""
        return max(0.0, self.at - at)

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Read one entry in Redis; a damaged one is counted and left out."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            self.unreadable(what)

    def unreadable(self, what: str) -> None:
        """Count an unreadable entry in Redis."""
        self._left_out[what, "unreadable"] += 1

    def families(self) -> list[Family]:
        """Return all samples, in the order of the catalog."""
        for labels, count in self._left_out.items():
            self.add(catalog.LEFT_OUT, count, *labels)
        return [
            self._families[metric.name]
            for metric in catalog.CATALOG
            if metric.name in self._families
        ]
