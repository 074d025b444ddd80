"""A spec with any text in the place of one of its values, for tests of what a reader takes and refuses."""


def spec(chain: str = "y = x", reference: str = "x", **keys: str) -> str:
    """A small spec, well-formed except for the texts that are put in."""
    keys = {
        "op": "f",
        "summary": "Something.",
        "types": "\n  T: [float32, bfloat16]",
        "inputs": "\n  x: T[..., N]\n  p: T[..., (2 N)]\n  i: int32[...]\n  m: bool[N]\n  t: float32[P, N]",
        "outputs": "\n  y: T[..., N]",
        "chain": block(chain),
        "reference": block(reference),
    } | keys
    return "".join(f"{key}: {value}\n" for key, value in keys.items())


def block(text: str) -> str:
    return "|\n" + "".join(f"  {line}\n" for line in text.split("\n"))


def rest() -> str:
    """A term that reads all other inputs of `spec`."""
    return "where(m, x, p[0] + p[1] + take(t, i, axis=P))"
