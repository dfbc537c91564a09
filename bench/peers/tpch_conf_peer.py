"""The script of `tpch_peer`, in a session that keeps as many compiled stages as one of a runner.

With Spark's default of 100, a second run of the queries compiles most of them again.
"""

import tpch_peer

if __name__ == "__main__":
    tpch_peer.main(**{"spark.sql.codegen.cache.maxEntries": "1000"})
