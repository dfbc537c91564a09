"""How jobs stand: their facts, lines, logs and pictures."""
