"""Pipelines to read, run and copy. Steps are named in specs as ``examples.flights:clean``."""
