"""The interface for applications, which submit, read and command jobs and schedules."""
