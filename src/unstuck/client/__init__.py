"""The interface for applications: jobs and schedules are submitted, awaited, read and commanded
here.
"""
