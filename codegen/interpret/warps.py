"""Instructions between the lanes of a warp."""

from __future__ import annotations

from codegen.interpret.decoding import Execute, Unknown


def shuffle(words, operands) -> Execute:
    sync, mode, _ = words
    target, a, b, c, mask = operands
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx"):
        raise Unknown("." + mode)
    return lambda m: m.shuffle(mode, target, a, b, c, mask)


def vote(words, operands) -> Execute:
    sync, mode, _ = words
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise Unknown("." + mode)
    target, p, mask = operands
    return lambda m: m.vote(mode, target, p, mask)
