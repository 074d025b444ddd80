"""The text of a formula to the typed graph."""
