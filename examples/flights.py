"""The steps of the flights pipeline (``flights.yaml``): what delayed the flights out of New York
City in 2013?
"""

# Steps are plain functions of a Spark session, a context and parameters. They read through
# ``ctx.input`` and write through ``ctx.output`` (or by returning a frame), and nowhere else: so an
# attempt that dies, or is doubled, leaves nothing behind. ``flights_truth.py`` finds the same
# numbers without Spark.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from examples.nycflights import read_table
from unstuck import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from unstuck import StepContext

# Above this the instrument was wrong: the data has one hour of 1,048 mph at Newark. In miles per
# hour.
HIGHEST_BELIEVABLE_WIND = 200.0

# Factor → its column, and its classes as (name, lower bound); a class ends below the next one's
# bound. Inches per hour, miles and miles per hour, as the weather table has them.
WEATHER_CLASSES: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "precipitation": (
        "precip",
        (("none", 0.0), ("light", 0.01), ("moderate", 0.1), ("heavy", 0.3)),
    ),
    "visibility": ("visib", (("poor", 0.0), ("reduced", 1.0), ("good", 5.0), ("clear", 10.0))),
    "wind": (
        "wind_speed",
        (("calm", 0.0), ("breeze", 10.0), ("strong", 20.0), ("near gale", 30.0)),
    ),
}

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


# -- clean: three steps of one group, in one session -----------------------------------------------


def clean(spark: SparkSession, ctx: StepContext, year: int) -> DataFrame:
    """One row per scheduled flight of ``year``: times in UTC, cancelled and diverted marked, its
    aircraft joined.

    ``origin`` with ``time_hour`` (the hour of the scheduled departure, UTC) is the key to the
    weather.

    Raises:
        Unrecoverable: the data is not installed, or has no flight in ``year``.
    """
    raw = read_table("flights")
    of_year = raw.filter(pc.equal(raw["year"], year))
    if of_year.num_rows == 0:
        held = ", ".join(str(y) for y in pc.unique(raw["year"]).to_pylist())
        raise Unrecoverable(
            f"no flights in {year}: the data holds {held}; submit with --param year={held}"
        )
    ctx.progress(1, 2)

    # The rows go to Spark through this process, not by file name: executors on other hosts have no
    # such file.
    flights = spark.createDataFrame(of_year)
    planes = spark.createDataFrame(read_table("planes")).withColumnRenamed("year", "built")
    cleaned = (
        flights.join(F.broadcast(planes), "tailnum", "left")
        .withColumn("scheduled_at", F.timestamp_add("MINUTE", F.col("minute"), F.col("time_hour")))
        .select(
            *(
                "year",
                "month",
                "day",
                "carrier",
                "flight",
                "tailnum",
                "origin",
                "dest",
                "time_hour",
                "scheduled_at",
            ),
            # dep_time is a local clock reading that wraps at midnight; the delay does not, so it
            # gives the instant.
            F.timestamp_add("MINUTE", F.col("dep_delay").cast("int"), F.col("scheduled_at")).alias(
                "departed_at"
            ),
            *("dep_delay", "arr_delay", "air_time", "distance", "seats"),
            (F.col("year") - F.col("built")).alias("plane_age"),
            F.col("dep_time").isNull().alias("cancelled"),
            (F.col("dep_time").isNotNull() & F.col("arr_delay").isNull()).alias("diverted"),
        )
        .coalesce(2)
    )
    ctx.progress(2, 2)
    ctx.log.info("cleaned %s flights of %d", f"{of_year.num_rows:,}", year)
    return cleaned


def clean_weather(spark: SparkSession, ctx: StepContext) -> pa.Table:
    """One row per airport and hour. An Arrow table: for 26,000 rows a Spark job would be longer on
    its way.
    """
    weather = read_table("weather")
    wind = weather["wind_speed"]
    believable = pc.if_else(
        pc.less(wind, HIGHEST_BELIEVABLE_WIND), wind, pa.scalar(None, pa.float64())
    )
    ctx.log.info("took out %d unbelievable wind speeds", believable.null_count - wind.null_count)
    return weather.set_column(
        weather.schema.get_field_index("wind_speed"), "wind_speed", believable
    )


def airlines(spark: SparkSession, ctx: StepContext) -> pa.Table:
    """Carrier codes with their names."""
    return read_table("airlines")


# -- the measures: by_carrier and by_origin are SQL in the spec ------------------------------------


def measures(late_after: int) -> list[Column]:
    """The columns that every table of delays has. Late: departed ``late_after`` minutes or more
    behind schedule.
    """
    return [
        F.count("*").alias("flights"),
        F.count_if("cancelled").alias("cancelled"),
        F.count_if("diverted").alias("diverted"),
        F.count_if(F.col("dep_delay") >= late_after).alias("late"),
        F.avg("dep_delay").alias("mean_dep_delay"),
        F.avg("arr_delay").alias("mean_arr_delay"),
    ]


def month(spark: SparkSession, ctx: StepContext, month: int, late_after: int) -> DataFrame:
    """One row: the measures of one month.

    A fork of twelve of these makes the dataset ``monthly``.
    """
    flights = ctx.input("clean").where(F.col("month") == month)
    return flights.agg(
        F.lit(month).alias("month"), F.lit(MONTHS[month - 1]).alias("name"), *measures(late_after)
    )


def weather_class(factor: str) -> Column:
    """A struct of factor, position and class for a row of the weather; ``unknown`` (last) where
    nobody measured.
    """
    column, classes = WEATHER_CLASSES[factor]

    def struct(position: int, name: str) -> Column:
        return F.struct(
            F.lit(factor).alias("factor"),
            F.lit(position).alias("position"),
            F.lit(name).alias("class"),
        )

    chosen = F.when(F.col(column).isNull(), struct(len(classes) + 1, "unknown"))
    for position, (name, lower) in reversed(list(enumerate(classes, start=1))):
        chosen = chosen.when(F.col(column) >= lower, struct(position, name))
    return chosen


def weather_delays(spark: SparkSession, ctx: StepContext, late_after: int) -> DataFrame:
    """The measures by class of precipitation, visibility and wind in the hour and at the airport of
    departure.

    ``position`` puts the classes of a factor in order. The rows are in none: a sort would be one
    more shuffle.
    """
    weather = ctx.input("weather").select("origin", "time_hour", "precip", "visib", "wind_speed")
    return (
        ctx.input("clean")
        .join(F.broadcast(weather), ["origin", "time_hour"], "left")
        # Three rows per flight, one per factor, so that the flights are read and joined once.
        .withColumn(
            "of", F.explode(F.array(*(weather_class(factor) for factor in WEATHER_CLASSES)))
        )
        .groupBy("of.factor", "of.position", "of.class")
        .agg(*measures(late_after))
    )


# -- report ----------------------------------------------------------------------------------------


def report(spark: SparkSession, ctx: StepContext, late_after: int) -> None:
    """The headline numbers: ``position``, ``name``, ``value`` as people read it, ``number`` as
    machines compare it.
    """
    names = ("flights_by_carrier", "flights_by_origin", "monthly", "weather_delays")
    tables = {name: [row.asDict() for row in ctx.input(name).collect()] for name in names}
    overall = (
        ctx.input("clean")
        .agg(*measures(late_after), F.avg("plane_age").alias("plane_age"))
        .first()
        .asDict()
    )
    found = headlines(overall, tables, late_after)

    ctx.log.info("what %d rows of headlines say:", len(found))
    for name, value, number in found:
        ctx.log.info("  %-44s %s", name, value)
        ctx.result(name, number)
    rows = [(position, *headline) for position, headline in enumerate(found, start=1)]
    ctx.output("report").write(pd.DataFrame(rows, columns=["position", "name", "value", "number"]))


def headlines(
    overall: dict[str, Any], tables: dict[str, list[dict[str, Any]]], late_after: int
) -> list[tuple[str, str, float]]:
    """(name, value, number) per headline, in reading order. Delays are means in minutes."""
    carriers, origins, months = (
        tables[name] for name in ("flights_by_carrier", "flights_by_origin", "monthly")
    )
    weather = {(row["factor"], row["class"]): row for row in tables["weather_delays"]}
    busiest = max(carriers, key=lambda row: row["flights"])
    latest = max(carriers, key=lambda row: row["mean_arr_delay"])
    earliest = min(carriers, key=lambda row: row["mean_arr_delay"])
    slowest = max(origins, key=lambda row: row["mean_dep_delay"])
    worst = max(months, key=lambda row: row["mean_dep_delay"])
    best = min(months, key=lambda row: row["mean_dep_delay"])
    grounded = max(months, key=lambda row: row["cancelled"])

    def count(name: str, column: str) -> tuple[str, str, float]:
        number = overall[column]
        return name, f"{number:,} ({number / overall['flights']:.1%})", float(number)

    def delay(
        name: str, row: dict[str, Any], column: str, label: str = ""
    ) -> tuple[str, str, float]:
        minutes = row[column]
        return name, f"{label}{': ' if label else ''}{minutes:.1f} min", minutes

    return [
        ("flights scheduled", f"{overall['flights']:,}", float(overall["flights"])),
        count("cancelled", "cancelled"),
        count("diverted, or no arrival on record", "diverted"),
        count(f"departed {late_after} minutes late or more", "late"),
        delay("departure delay", overall, "mean_dep_delay"),
        delay("arrival delay", overall, "mean_arr_delay"),
        (
            "busiest carrier",
            f"{busiest['airline']}: {busiest['flights']:,} flights",
            float(busiest["flights"]),
        ),
        delay("latest carrier, on arrival", latest, "mean_arr_delay", latest["airline"]),
        delay("earliest carrier, on arrival", earliest, "mean_arr_delay", earliest["airline"]),
        delay("slowest airport, departure delay", slowest, "mean_dep_delay", slowest["origin"]),
        delay("worst month, departure delay", worst, "mean_dep_delay", worst["name"]),
        delay("best month, departure delay", best, "mean_dep_delay", best["name"]),
        (
            "most cancellations in a month",
            f"{grounded['name']}: {grounded['cancelled']:,}",
            float(grounded["cancelled"]),
        ),
        delay(
            "departure delay without precipitation",
            weather["precipitation", "none"],
            "mean_dep_delay",
        ),
        delay(
            "departure delay in heavy precipitation",
            weather["precipitation", "heavy"],
            "mean_dep_delay",
        ),
        delay("departure delay in clear sight", weather["visibility", "clear"], "mean_dep_delay"),
        delay(
            "departure delay in poor visibility", weather["visibility", "poor"], "mean_dep_delay"
        ),
        ("mean age of the aircraft", f"{overall['plane_age']:.1f} years", overall["plane_age"]),
    ]
