"""What users see of each thing: one type each, which the client returns, JSON dumps and the page
shows.
"""
