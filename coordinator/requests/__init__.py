"""Requests to a fleet, from its client or from Celery messages that a coordinator receives."""
