"""What of a model is one op: chains of its steps that are one kernel, ranked by the time they save, and put in their place."""
