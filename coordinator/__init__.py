"""The head: jobs, decisions, publishing, commands and the command line. Never imports Spark."""

from coordinator.client import Client
from coordinator.spec import JobSpec

__all__ = ["Client", "JobSpec"]
