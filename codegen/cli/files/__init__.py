"""The files that commands write and watch."""
