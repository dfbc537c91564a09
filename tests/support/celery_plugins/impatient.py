"""``celery``, with its own patience cut short: where the tries are left to Celery, it gives up
after the second.

By itself Celery gives up after a hundred tries, about 46 minutes; no test waits that long.
"""

from __future__ import annotations

from celery.app import defaults

TRIES = 1

if __name__ == "__main__":
    from celery.__main__ import main

    defaults.DEFAULTS["broker_connection_max_retries"] = TRIES
    main()
