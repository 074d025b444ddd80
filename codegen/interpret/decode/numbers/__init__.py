"""Instructions on the registers of one thread."""
