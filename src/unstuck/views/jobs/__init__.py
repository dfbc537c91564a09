"""The state of jobs: their facts, lines, logs and pictures."""
