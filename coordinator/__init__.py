"""The coordinator side: jobs, decisions, publishing, commands and the command line."""
