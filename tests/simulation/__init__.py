"""The simulator: whole histories of Unstuck in one process, under a seed and a virtual clock.

What decides is the real thing: ``decide``, ``act.Coordinator``, ``Consumer`` and ``Sweep``. What it stands on is
modelled: the store (with the semantics of the Lua scripts), the report stream, the broker, the warehouse, the workers
and their watchdogs. Everything that can go wrong does: messages are lost, doubled, delayed and reordered, replies are
lost, workers and coordinators are killed and frozen at any boundary. After every step the promises are checked.

    python -m tests.simulation --seeds 500 --start 0
    python -m tests.simulation --trace 17

==============  ==================================================================
``stage``       the clock, the actors and who goes next; the trace
``trouble``     what goes wrong in this history, drawn from the seed
``model``       the store: what the Lua scripts do, on Python values
``stream``      the report stream and its consumer group
``broker``      the queues of hints
``depot``       the warehouse: markers and the log
``fleet``       runners and watchdogs
``head``        coordinators: the real ones, in threads that take turns
``jobs``        random job specs, and how their steps will behave
``promises``    what is checked after every step
``history``     one run from seed to verdict
``planted``     bugs put in on purpose, which must be found
==============  ==================================================================
"""
