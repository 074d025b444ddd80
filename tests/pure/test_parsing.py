"""Python's parser is called in one place, by one thread at a time."""

import re
import warnings
from pathlib import Path

import pytest

import codegen
from codegen import parsing


def test_only_one_module_calls_the_parser():
    found = Path(codegen.__file__).parent.rglob("*.py")
    calls = re.compile(r"\bast\.parse\(|\bcatch_warnings\(|literal_eval\([\"']")
    assert [path.name for path in found if calls.search(path.read_text())] == ["parsing.py"]


@pytest.mark.parametrize("check", [parsing.parse, parsing.check_compiles])
def test_what_the_parser_warns_of_is_an_error(check):
    check("1 if x else 2")
    with pytest.raises(SyntaxError):
        check("1if x else 2")


def test_warnings_of_other_threads_are_none():
    """Filters belong to the process: JAX may warn in another thread during a parse."""
    with parsing._no_warnings(), pytest.warns(UserWarning, match="from elsewhere"):
        warnings.warn("from elsewhere", stacklevel=1)
