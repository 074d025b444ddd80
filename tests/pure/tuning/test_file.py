"""Measured launches in files: what is written is read again, and a file that `codegen tune` did not write is an error."""

import pytest

from codegen.errors import SpecError
from codegen.plan.launches import Tuned
from codegen.tuning import file
from codegen.tuning.choosing import found, size_class

ENTRY = Tuned(
    "rmsnorm_backward", "sm_90a", (("T", "bfloat16"),), (("rows", 4096, None), ("columns", 4096, 8191)), "launch",
    (("threads", 256), ("only_row", True), ("parts", 0.5)),
    (("us", 570.1), ("shape", "...=65536, N=4096"), ("gpu", "NVIDIA H100 80GB HBM3"), ("date", "2026-11-25")),
)  # fmt: skip
XLA = Tuned("off", "sm_90a", (("ON", "float32"),), (("elements", 1, 7),), "xla", (), (("us", 2.0), ("xla_us", 1.5)))


def test_what_is_written_is_read_again(tmp_path):
    path = file.path_of(tmp_path, "sm_90a")
    file.write(path, {"rmsnorm": (ENTRY,), "off": (XLA,)})
    assert file.read(path) == {"rmsnorm": (ENTRY,), "off": (XLA,)}
    assert file.tuned_beside(tmp_path / "rmsnorm.yaml") == (ENTRY,)
    assert file.tuned_beside(tmp_path / "softmax.yaml") == ()
    text = path.read_text()
    file.write(path, file.read(path))
    assert path.read_text() == text
    assert "launch: {threads: 256, only_row: true, parts: 0.5}" in text


def test_a_new_measurement_replaces_that_of_the_same_calls():
    other = Tuned(*[getattr(ENTRY, name) for name in ("kernel", "arch", "types", "sizes")], "plan")
    more = Tuned("rmsnorm", *[getattr(ENTRY, name) for name in ("arch", "types", "sizes")], "plan")
    assert file.merged({"rmsnorm": (ENTRY,)}, [("rmsnorm", other), ("rmsnorm", more)]) == {"rmsnorm": (other, more)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\nops: {}\n", "not a file of measured launches in version 1"),
        ("[1]\n", "not a file of measured launches in version 1"),
        ("version: 1\nops: {a: [}\n", "not valid YAML"),
        ("version: 1\nops: {a: 3}\n", "a: a list of measurements"),
        ("version: 1\nops: {a: [{kernel: a, take: fast}]}\n", "a: 'take' is 'fast'"),
        ("version: 1\nops: {a: [{kernel: a, take: plan, lunch: {}}]}\n", "a: unknown key 'lunch'"),
        ("version: 1\nops: {a: [{kernel: a, take: launch, launch: {thread: 64}}]}\n", "a: unknown setting 'thread'"),
        (
            "version: 1\nops: {a: [{kernel: a, take: launch, launch: {threads: many}}]}\n",
            "a: 'threads' must be a number",
        ),
        ("version: 1\nops: {a: [{kernel: a, take: plan, sizes: {rows: 3}}]}\n", "a: the sizes of 'rows' are"),
        ("version: 1\nops: {a: [{kernel: a, take: plan, types: 3}]}\n", "a: 'types' must be a mapping"),
    ],
)
def test_another_file_is_an_error(text, message, tmp_path):
    path = file.path_of(tmp_path, "sm_90a")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        file.read(path)
    assert raised.value.diagnostics[0].message.startswith(message)
    assert str(path) in str(raised.value)


def test_a_file_is_that_of_an_architecture(tmp_path):
    path = file.path_of(tmp_path, "sm_91")
    file.write(path, {})
    with pytest.raises(SpecError, match="there is no architecture 'sm_91'"):
        file.read(path)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("columns", 4096, (4096, 8191)),
        ("columns", 8191, (4096, 8191)),
        ("columns", 1, (1, 1)),
        ("columns", 0, (0, 1)),
        ("rows", 1, (1, 7)),
        ("rows", 4095, (512, 4095)),
        ("rows", 4096, (4096, None)),
        ("rows", 10**9, (4096, None)),
        ("elements", 2**24, (2**24, None)),
        ("K", 1000, (512, 1023)),
    ],
)
def test_the_class_of_a_size(name, size, expected):
    own, least, most = size_class(name, size)
    assert (own, least, most) == (name, *expected)
    assert least <= size and (most is None or size <= most)


def test_a_call_finds_what_was_measured_for_its_types_and_sizes():
    types, sizes = [("T", "bfloat16")], {"rows": 5000, "columns": 5000}
    assert found([XLA, ENTRY], "rmsnorm_backward", "sm_90a", types, sizes) is ENTRY
    assert found([ENTRY], "rmsnorm", "sm_90a", types, sizes) is None
    assert found([ENTRY], "rmsnorm_backward", "sm_100a", types, sizes) is None
    assert found([ENTRY], "rmsnorm_backward", "sm_90a", [("T", "float32")], sizes) is None
    assert found([ENTRY], "rmsnorm_backward", "sm_90a", types, sizes | {"columns": 8192}) is None
    assert found([ENTRY], "rmsnorm_backward", "sm_90a", types, {}) is None
