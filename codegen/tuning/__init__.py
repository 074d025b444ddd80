"""Measured launches: which one a call takes, the file that has them, and the candidates to try."""
