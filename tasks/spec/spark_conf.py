"""Tell apart Spark conf for a running session and for a new one, without Spark.

The coordinator uses it.
"""

from __future__ import annotations

from collections.abc import Mapping

# What follows `spark.` in the settings that Spark reads once, when its context starts: those of its
# core, its masters and Spark Connect (spark.apache.org/docs/latest/configuration.html). `hadoop` is
# copied into the context, too.
_CONTEXT = """
    acls admin api app appStateStore archives authenticate barrier block blockManager broadcast
    buffer checkpoint cleaner connect cores dead decommission default deploy diskStore driver
    dynamicAllocation eventLog excludeOnFailure executor executorEnv extraListeners file files
    hadoop hadoopRDD history io jars kerberos killExcludedExecutors kryo kryoserializer kubernetes
    local locality log logConf master memory metrics modify network plugins port pyspark python r
    rdd redaction reducer remote resources rpc scheduler security serializer shuffle shutdown sparkr
    speculation ssl stage standalone storage streaming submit task taskMetrics test testing ui
    unsafe user worker yarn
"""
# What follows `spark.sql.` in its static settings (StaticSQLConf and HiveUtils in Spark's source).
_SQL = """
    artifact.copyFromLocalToFs.allowDestLocal avro.schemaUrlAllowedSchemes
    broadcastExchange.maxThreadThreshold cache.serializer catalog.spark_catalog.defaultDatabase
    catalogImplementation codegen.cache.maxEntries codegen.comments debug
    defaultUrlStreamHandlerFactory.enabled event.truncate.length extensions
    extensions.test.loadFromCp filesourceTableRelationCacheSize globalTempDatabase
    hive.metastore.barrierPrefixes hive.metastore.jars hive.metastore.jars.path
    hive.metastore.sharedPrefixes hive.metastore.version hive.thriftServer.http.sniHostCheckEnabled
    hive.thriftServer.singleSession hive.version kafka.disallowedOptions
    legacy.hive.thriftServer.allowSettingSystemProperties legacy.sessionInitWithConfigDefaults
    metadataCacheTTLSeconds queryExecutionListeners reflect.allowList restrictedMode.enabled
    resultQueryStage.maxThreadThreshold shuffleExchange.maxThreadThreshold
    sources.disabledJdbcConnProviderList sources.schemaStringLengthThreshold
    streaming.streamingQueryListeners streaming.ui.enabled streaming.ui.enabledCustomMetricList
    streaming.ui.retainedProgressUpdates streaming.ui.retainedQueries subquery.maxThreadThreshold
    ui.retainedExecutions warehouse.dir
"""
_OF_THE_CONTEXT = frozenset(_CONTEXT.split())
_STATIC_SQL = frozenset(f"spark.sql.{name}" for name in _SQL.split())


def is_static(key: str) -> bool:
    """Return whether only a new session accepts a setting; False if Spark does not document it."""
    first, _, rest = key.partition(".")
    return key in _STATIC_SQL or (first == "spark" and rest.partition(".")[0] in _OF_THE_CONTEXT)


def static_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``conf`` that only a new session accepts."""
    return {key: value for key, value in conf.items() if is_static(key)}
