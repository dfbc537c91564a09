"""The worker side: what a worker needs to claim, run, stage and report one attempt of a task
group.
"""
