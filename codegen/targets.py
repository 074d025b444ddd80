"""The architectures of GPUs that CuTe DSL compiles for."""

ARCHITECTURES = tuple("""
    sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_101 sm_101a sm_101f sm_103 sm_103a sm_103f
    sm_107 sm_107a sm_107f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f
""".split())  # fmt: skip
USUAL = "sm_80,sm_90a,sm_100a,sm_120a"  # those that kernels are compiled for where none is named


def family(arch: str) -> str:
    """An architecture without the letter of its variant: sm_90 of sm_90a."""
    return arch.rstrip("af")
