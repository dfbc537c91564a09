"""Spark's connectors to S3 and to Delta tables, and a Kafka broker, which no Python package has:
``make jars`` fetches them with Maven.

They stand in a folder for each version of Spark, and in one for Kafka. A test that needs them is
``long``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / ".jars"
# By the version of Spark: that of its Hadoop, and the newest Delta for it.
HADOOP = {"3.5": "3.3.4", "4.0": "3.4.1", "4.3": "3.5.0"}
DELTA = {"3.5": "delta-spark_2.12:3.3.2", "4.0": "delta-spark_2.13:4.0.1"}
KAFKA = "4.1.0"
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>unstuck</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_ONE = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def spark() -> str:
    """The version of the Spark of this environment, such as ``4.3``."""
    return ".".join(version("pyspark").split(".")[:2])


def class_path(*words: str) -> str:
    """The jars for this Spark, as ``spark.driver.extraClassPath`` takes them: ``spark.jars`` would
    copy 700 MB.

    The test is skipped if no connector of these ``words`` was ever made for this Spark.
    """
    if "delta" in words and spark() not in DELTA:
        pytest.skip(
            f"there is no Delta connector for Spark {spark()}; it is tried with "
            f"{' and '.join(DELTA)}"
        )
    assert (FOLDER / spark()).exists(), f"no jars for Spark {spark()}: make jars SPARKS={spark()}"
    return str(FOLDER / spark() / "*")


def fetch(what: str) -> None:
    """Fetch the jars for a version of Spark, or ``kafka``, unless they stand. Raises:
    subprocess.CalledProcessError.
    """
    folder, new = FOLDER / what, FOLDER / f"{what}.new"
    wanted: list[tuple[str, ...]] = []
    if what == "kafka":
        wanted.append(("org.apache.kafka", "kafka_2.13", KAFKA))
    else:
        wanted.append(("org.apache.hadoop", "hadoop-aws", HADOOP[what]))
    if what in DELTA:
        wanted.append(("io.delta", *DELTA[what].split(":")))
    pom = _POM.format("".join(_ONE.format(*one) for one in wanted))
    if folder.exists() and (folder / "pom.xml").read_text() == pom:
        return
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / "pom.xml").write_text(pom)
    # Spark has what is left out.
    copy = [
        "dependency:copy-dependencies",
        f"-DoutputDirectory={new}",
        "-DexcludeGroupIds=org.antlr",
    ]
    subprocess.run(["mvn", "-q", "-B", "-f", str(new / "pom.xml"), *copy], check=True)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


if __name__ == "__main__":
    if shutil.which("mvn") is None:
        sys.exit("make jars needs Maven (mvn)")
    for one in sys.argv[1:] or os.environ.get("SPARKS", "").split() or [spark()]:
        print(f"jars for {one}", flush=True)
        fetch(spark() if one == "newest" else one)
