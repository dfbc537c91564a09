"""The simulator plays whole histories of Unstuck in one process, under a seed and a virtual clock.

The code that decides is the product's: ``decide``, the reconciler, the consumer, the sweep, ``Client``, ``explain`` and
the watchdog policy. What it stands on is modelled, and may lose, double, delay, die, freeze and go back in time. The
promises are checked after every step.

    python -m tests.simulation --seeds 500 --start 0
    python -m tests.simulation --trace 17
    python -m tests.simulation --shorten 17
    python -m tests.simulation --planted

``stage``       the clock, the actors and who goes next; the trace
``trouble``     what goes wrong in this history, drawn from the seed
``weather``     what befalls the store itself (restarts, rollbacks, a clock that is set), and releases that meet
``stored``      what stands in the store of one job
``model``       the store: what the Lua scripts do, on Python values; ``claimed`` is what a claim hands out
``stream``      the report stream and its consumer group
``broker``      the queues of offers
``depot``       the warehouse: markers and the log
``fleet``       runners and watchdogs
``head``        coordinators: the real ones, in threads that take turns
``line``        the connection of such a thread: where it dies, freezes, does not hear
``dispatch``    offers, packages and aborts, call by call
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
``history``     one run from seed to its end
``mirror``      the model and, call by call, the real store and scripts on a real Valkey
``short``       a history that breaks a promise, made short
``planted``     bugs put in on purpose, which must be found: those that real systems had
``mutants``     and those of one line, most of which make something late
``planting``    how they are put in, and searched for
==============  ==================================================================
=======
===========  ==========================================================================================
``stage``    one history: its clock and turns, its jobs, its faults, what the user will ask for
``actors``   users, coordinators, runners with their watchdogs, the broker, the warehouse
``model``    the store as the Lua scripts keep it, and the same calls on a real Valkey beside it
``rules``    the promises, each written down a second time, and by which name each is broken
``planted``  bugs put in on purpose; each must be found by the promise that it breaks
===========  ==========================================================================================
"""
