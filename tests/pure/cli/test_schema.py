"""The schema of specs: it takes every key and every good spec, and refuses bad ones."""

import json
from collections.abc import Iterator

import jsonschema
import pytest

from codegen.cli.schema import json_schema
from codegen.spec.text import parse_yaml
from codegen.spec.tree import Mapping, Scalar, Sequence, Tree
from tests.places import GOOD_SPECS, SPECS
from tests.pure.building import SPEC
from tests.turns import some


def plain(tree: Tree) -> object:
    """A tree in the form of JSON."""
    if isinstance(tree, Mapping):
        return {key.value: plain(value) for key, value in tree.items}
    if isinstance(tree, Sequence):
        return [plain(item) for item in tree.items]
    assert isinstance(tree, Scalar)
    return tree.resolve()


def validate(text: str) -> None:
    tree, repeated = parse_yaml("spec.yaml", text)
    assert not repeated
    jsonschema.validate(plain(tree), json_schema(), cls=jsonschema.Draft202012Validator)


def test_schema_is_a_schema(run):
    result = run("schema")
    assert result.status == 0
    assert json.loads(result.out) == json_schema()
    jsonschema.Draft202012Validator.check_schema(json_schema())


def properties(schema: dict, path: str = "") -> Iterator[tuple[str, dict]]:
    """Every key that a schema names, at any depth, with its description."""
    for key, value in schema.get("properties", {}).items():
        yield f"{path}{key}", value
        yield from properties(value, f"{path}{key}.")
    for inner in (schema.get("additionalProperties"), schema.get("items"), *schema.get("oneOf", ())):
        if isinstance(inner, dict):
            yield from properties(inner, path)


def test_every_key_of_the_schema_is_described():
    found = dict(properties(json_schema()))
    assert {"op", "bench", "params.static", "tolerance.why", "schedule.sm_90a.threads"} <= found.keys()
    assert [key for key, value in found.items() if not value.get("description")] == []


def test_editors_find_the_schema_by_the_first_line_of_a_spec(run, tmp_path):
    assert run("new", "a").status == 0
    first = (tmp_path / "specs/a.yaml").read_text().splitlines()[0]
    schema = tmp_path / "specs" / first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads(schema.read_text()) == json_schema()
    validate((tmp_path / "specs/a.yaml").read_text())
    # A build brings it up to date where it is, and writes none where it is not
    schema.write_text(schema.read_text().replace("math", "maths"))
    assert run("build").status == run("check").status == 0
    assert json.loads(schema.read_text()) == json_schema()
    schema.write_text("{}")  # somebody else's
    assert run("build").status == run("new", "b").status == 0
    assert schema.read_text() == "{}"
    schema.unlink()
    assert run("build").status == 0
    assert not schema.exists()


LIBRARY, GOOD = (sorted(folder.glob("*.yaml")) for folder in (SPECS, GOOD_SPECS))


@pytest.mark.parametrize("path", [*some(LIBRARY, 12), *GOOD], ids=lambda path: path.stem)  # jsonschema is slow
def test_schema_takes_every_good_spec(path):
    validate(path.read_text())


FULL = SPEC.format(op="a", factor=1.0)


def test_schema_takes_every_key():
    validate(FULL + "save: z\n")
    validate(
        FULL + "types: {T: [float32]}\nparams: {a: 1.0, b: {type: int, default: 2, static: false, doc: d}}\n"
        "grad: {x: dy}\naliases: {y: x}\nsave: [z]\nmath: fast\ntolerance: {rtol: 1e-3, why: w}\n"
        "domain: {x: positive, b: [0, 1], i: index(N), j: 'index(N, R)'}\n"
        "schedule: {threads: 128, sm_90a: {vector_bytes: 8}}\nbench: [{...: 8192, N: 4096}]\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        FULL + "foo: 1\n",
        FULL.replace("summary", "sumary"),
        FULL.replace("op: a", "op: A"),
        FULL.replace("op: a", "op: [a]"),
        FULL.replace("float32[..., N]", "float32", 1),
        FULL.replace("inputs:\n  x: float32[..., N]", "inputs: {}"),
        FULL + "types: {T: float32}\n",
        FULL + "types: {T: [half]}\n",
        FULL + "types: {t: [float32]}\n",
        FULL + "params: {a: one}\n",
        FULL + "params: {a: {type: double}}\n",
        FULL + "grad: maybe\n",
        FULL + "math: exact\n",
        FULL + "tolerance: {rtol: 1e-3}\n",
        FULL + "domain: {x: negative}\n",
        FULL + "schedule: {warps: 4}\n",
        FULL + "bench: [{N: 0}]\n",
    ],
    ids=range(17),
)
def test_schema_refuses_bad_specs(text):
    with pytest.raises(jsonschema.ValidationError):
        validate(text)
