"""The JVM of this process, for tests that start a Spark driver in it."""

from __future__ import annotations

from pyspark import SparkContext


def end_jvm() -> None:
    """End it, and let the next driver of this process start another."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.kill()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
