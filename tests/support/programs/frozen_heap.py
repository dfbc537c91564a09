"""Imported last by the fork server: no process forked from it looks through what was imported, nor
copies it.
"""

import gc

gc.collect()
gc.freeze()
