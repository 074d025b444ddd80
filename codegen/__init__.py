"""A declarative generator of fused GPU ops for JAX: a YAML spec in, a CuTe DSL kernel and a JAX function out."""

__version__ = "0.2.0"
