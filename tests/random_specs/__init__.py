"""Random valid specs: one integer gives a spec and a reference for it, both printed from one tree. `python -m tests.random_specs`."""
