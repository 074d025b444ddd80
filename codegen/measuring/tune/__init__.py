"""The search for the fastest launches."""
