"""Times on a GPU: what is timed, how, and how the results are shown."""
