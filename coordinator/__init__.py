"""The coordinator side: jobs, decisions, publishing and the requests of clients."""
