"""From JAX functions to specs: a function's jaxpr to steps, and steps to formulas of the language."""
