"""The chaos driver: a real fleet, real signals, a Redis that comes and goes, and a ledger at the
end.

``python -m tests.chaos.driver run`` (``make chaos``), ``… recovery`` (``make recovery``), ``…
loss`` (``make loss``).
One noun a file: the ``proxy`` and the ``server`` that are broken, the ``fleet`` around them, the
``faults``, the ``load`` with its ``schedules``, ``steps`` and ``person``, the ``watch`` that times
recoveries, who was up (``uptime``), the ``ledger`` and the accounts of what is ``repeated``, was
``asked`` and came late that judge, the ``screen``.
"""
