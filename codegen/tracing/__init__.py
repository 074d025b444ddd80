"""From JAX functions to specs: a function's jaxpr as steps, steps as formulas of the language, and what of them is one op."""
