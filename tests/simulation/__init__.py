"""The simulator plays whole histories of Unstuck in one process, under a seed and a virtual clock.

The code that decides is the product's: ``decide``, the reconciler, the consumer, the sweep,
``Client``, ``explain`` and the watchdog policy; the rest is modelled, and may lose, double, delay,
die, freeze and go back in time. The promises are checked after every step.

    python -m tests.simulation --seeds 500 --start 0
    python -m tests.simulation --trace 17
    python -m tests.simulation --shrink 17
    python -m tests.simulation --planted

===========
==========================================================================================
``stage``    one history: its clock and turns, its jobs, its faults, what the user will ask for
``actors``   users, coordinators, runners with their watchdogs, the broker, the warehouse
``model``    the store as the Lua scripts keep it, and the same calls on a real Valkey beside it
``rules``    the promises, each written down a second time, and by which name each is broken
``planted``  planted bugs; each must be detected by the rule that it breaks
===========
==========================================================================================
"""
