"""The simulator: whole histories of Unstuck in one process, under a seed and a virtual clock.

What decides is the real thing: ``decide``, ``Reconciler``, ``Consumer`` and ``Sweep``, ``Client`` for what the
user asks, ``explain`` for what the user is told, and ``tasks.watchdog.policy`` for the watchdogs. What it stands on is
modelled: the store (with the semantics of the Lua scripts), the report stream, the broker, the warehouse, the runners.
Everything that can go wrong does: messages are lost, doubled, delayed and reordered, replies are lost, workers,
watchdogs and coordinators are killed and frozen at any boundary, publishers before their slot, runners are deaf to
their orders, the store restarts, goes back, has its clock set, two releases meet, and a user gives commands at the
worst moments. After every step the promises are checked. What is left paused in the end is left alone, then resumed.

    python -m tests.simulation --seeds 500 --start 0
    python -m tests.simulation --trace 17
    python -m tests.simulation --shorten 17

==============  ==================================================================
``stage``       the clock, the actors and who goes next; the trace
``trouble``     what goes wrong in this history, drawn from the seed
``weather``     what befalls the store itself (restarts, rollbacks, a clock that is set), and releases that meet
``stored``      what stands in the store of one job
``model``       the store: what the Lua scripts do, on Python values; ``claimed`` is what a claim hands out
``stream``      the report stream and its consumer group
``broker``      the queues of hints
``depot``       the warehouse: markers and the log
``fleet``       runners and watchdogs
``head``        coordinators: the real ones, in threads that take turns
``line``        the connection of such a thread: where it dies, freezes, does not hear
``dispatch``    hints, packages and aborts, call by call
``user``        commands, by the real client
``retries``     the jobs that a retry makes
``wishes``      which commands, when; and what is asked of single groups
``jobs``        random job specs, and how their steps will behave
``promises``    what is checked after every step
``broken``      their names, and what is raised
``lateness``    of these: how late each kind of wait may be, from the table of what a loss costs
``ends``        of these: how a job is shown, and how it ended
``packages``    of these: what is written to the warehouse log
``adopted``     of these: retries, and whose work counts as theirs
``said``        of these: who claimed which attempt, and what it said
``word``        of these: the rules of the user's word
``rules``       of these: join rules, conditions and explanations
``budgets``     of these: what is charged to whom
``asked``       of these: alter, skip and rerun
``clocks``      of these: timeouts of jobs and in queues
``locks``       of these: locks that a clock set back makes longer
``history``     one run from seed to verdict
``mirror``      the model and, call by call, the real store and scripts on a real Valkey
``short``       a history that breaks a promise, made short
``planted``     bugs put in on purpose, which must be found: those that real systems had
``mutants``     and those of one line, most of which make something late
``planting``    how they are put in, and searched for
==============  ==================================================================
"""
