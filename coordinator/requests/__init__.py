"""Requests to a fleet: of its client, and of the Celery messages that a coordinator takes."""
