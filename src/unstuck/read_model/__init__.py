"""The public type of each thing: the client returns it, JSON dumps it, the page shows it."""
