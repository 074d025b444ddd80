"""Parts of a model that are one op: chains of its steps that one kernel computes, ranked by the time they save, and put in their
place."""
