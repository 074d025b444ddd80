"""The bounds of a mask's condition over a tile contain what it is at every position of the tile."""

import operator
import random

from codegen.device.attention import bounds

NUMBERS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "minimum": min, "maximum": max,
    "neg": operator.neg, "magnitude": abs,
}  # fmt: skip
CONDITIONS = ("lt", "le", "gt", "ge", "eq", "ne")


def drawn(rng):
    low = rng.randint(-6, 6)
    return low, low + rng.choice([0, 1, 3, 7])


def test_numbers():
    rng = random.Random(0)
    for name, function in NUMBERS.items():
        count = 1 if name in ("neg", "magnitude") else 2
        for _ in range(200):
            given = [drawn(rng) for _ in range(count)]
            values = [range(low, high + 1) for low, high in given]
            made = [function(*x) for x in ([a] if count == 1 else [a, b] for a in values[0] for b in values[-1])]
            assert getattr(bounds, name)(*given) == (min(made), max(made)), (name, given)


def test_conditions_and_quotients():
    rng = random.Random(1)
    for _ in range(500):
        a, b, divisor = drawn(rng), drawn(rng), rng.randint(1, 5)
        pairs = [(x, y) for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)]
        for name in CONDITIONS:
            held = [getattr(operator, name)(x, y) for x, y in pairs]
            assert getattr(bounds, name)(a, b) == (any(held), all(held)), (name, a, b)
        for name, function in (("floordiv", operator.floordiv), ("mod", operator.mod)):
            low, high = getattr(bounds, name)(a, divisor)
            assert all(low <= function(x, divisor) <= high for x in range(a[0], a[1] + 1))
