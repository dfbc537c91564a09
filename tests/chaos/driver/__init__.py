"""The chaos driver: a real fleet, real signals, a Redis that comes and goes, and a ledger at the end.

``python -m tests.chaos.driver run`` (``make chaos``), ``… recovery`` (``make recovery``), ``… loss`` (``make loss``).
One noun a file: the ``proxy`` and the ``server`` that are broken, the ``fleet`` around them, the ``faults``, the
``load`` with its ``schedules`` and ``steps``, the ``watch`` that times recoveries, the ``ledger`` and the account of
what is ``repeated`` that judge, the ``screen``.
"""
