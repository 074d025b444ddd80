"""Sums by index: rows added up that have the same key."""
