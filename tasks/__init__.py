"""The worker side: claim, run, stage and report one attempt of a task group."""
