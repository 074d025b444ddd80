"""A small language to learn: every word has four successors, drawn with unequal odds, so the least loss is their entropy."""

import math

import numpy as np

WORDS = 1000  # at most; the rest of a vocabulary stays unused
ODDS = (0.4, 0.3, 0.2, 0.1)
ENTROPY = -sum(p * math.log(p) for p in ODDS)  # the least loss, 1.28


def batch(number: int, sequences: int, length: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch `number`: words and the words that follow them, int32[sequences, length] each."""
    random = np.random.default_rng(number)
    words = min(WORDS, vocabulary)
    choices = random.choice(len(ODDS), p=ODDS, size=(length, sequences))
    text = np.empty((length + 1, sequences), np.int32)
    text[0] = random.integers(words, size=sequences)
    for i, choice in enumerate(choices):
        text[i + 1] = (text[i] * 31 + choice * 271 + 7) % words
    return text[:-1].T.copy(), text[1:].T.copy()
