"""Mutants of the library's specs end in a `SpecError` or an op: some of them here, a million and more by hand."""

import json
import subprocess
import sys

import pytest

from tests import mutants
from tests.places import ROOT
from tests.turns import EVERY

INPUTS = 40_000 if EVERY else 600


def run(*arguments: str) -> subprocess.CompletedProcess:
    """Runs Python in another process: it forks others, which is not safe in a process with threads."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_mutants_end_in_a_mistake_or_an_op():
    done = run("-m", "tests.mutants", "--inputs", str(INPUTS), "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["inputs"] == figures["spec"] + figures["error"] == INPUTS
    assert figures["spec"] > INPUTS / 20
    assert figures["error"] > INPUTS / 2


def test_an_input_is_made_of_its_seed_and_number_alone():
    made = [mutants.mutant(7, number) for number in range(60)]
    assert made == [mutants.mutant(7, number) for number in range(60)]
    assert made != [mutants.mutant(8, number) for number in range(60)]
    texts = {text.encode() for _, text in mutants.corpus()}
    assert sum(data in texts for _, data in made) < 6


# Numbers of inputs, and what is planted there
FAULTY = """
import os
from tests import mutants
from tests.mutants import Op, SpecError

mutants.SECONDS = 0.1
number = -1

def mutant(seed, n):
    global number
    number = n
    return "f", b""

def examine(data, stem):
    if number == 3:
        return 1 / 0
    if number == 5:
        assert number == 6
    if number == 8:
        return bytearray(4 * 2**30)
    if number == 11:
        while True:
            pass
    if number == 13:
        os.abort()
    if number == 17:
        max(range(10**11))  # which no exception interrupts
    if number == 19:
        raise mutants.Slow("1 second")
    raise SpecError([])

def quiet(data, stem):
    try:
        return examine(data, stem)
    except SpecError as error:
        return error

mutants.mutant, mutants.examine, mutants.expressions = mutant, quiet, tuple
tally = mutants.fuzz(0, range(24), 2)
print(dict(tally.outcomes))
print(sorted(number for number, _ in tally.failures))
"""


@pytest.mark.long
def test_what_is_planted_is_found():
    """Exceptions, memory, endless loops, in Python and in C, and a process that ends: each is reported with its input."""
    done = run("-c", FAULTY)
    assert done.stderr == "" or "Aborted" in done.stderr or "Fatal" in done.stderr, done.stderr
    outcomes, numbers = done.stdout.splitlines()
    assert numbers == "[3, 5, 8, 11, 13, 17, 19]"
    assert eval(outcomes) == {"error": 17, "crash": 2, "wrong": 1, "slow": 2, "killed": 2}
