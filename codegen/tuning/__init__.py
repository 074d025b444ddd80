"""Measured launches: where a call finds its own, the file that holds them, and which ones there are to try."""
