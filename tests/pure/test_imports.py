"""Imports go one way: which package may import which, no circle of modules, and how large folders, modules and functions may be.

All imports count: those within functions, and those for types alone. The table is in order: a package imports rows above it.
"""

import ast
import functools
import graphlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

# A package, or a module beside the packages, to what it may import of ours; the name of a package includes what is in it
# unless that has a row of its own. All may import the version from `codegen` itself.
MAY_IMPORT = {
    "errors": "",
    "extras": "",
    "targets": "",
    "parsing": "",
    "shared": "",
    "library": "",
    "op_package": "",
    "cache": "errors",
    "graph": "errors",
    "spec": "errors extras targets graph",
    "language": "errors parsing graph spec",
    "plan": "errors targets shared graph spec language",
    "stages": "errors graph spec language plan",
    "autodiff": "errors parsing graph spec language plan stages",
    "tuning": "errors extras targets shared spec plan",
    "pipeline": "errors spec language plan stages autodiff tuning",
    "render": "errors extras parsing shared library graph spec language plan autodiff tuning pipeline",
    "explain": "errors extras targets shared graph spec language plan autodiff tuning",
    "device": "shared",
    "device.gemm": "shared device",
    "device.attention": "shared device device.gemm",
    "device.by_index": "shared device",
    "interpret": "errors extras",
    "runtime.call": "errors shared graph spec plan device",
    "runtime.xla": "graph spec language plan autodiff runtime.call",
    "runtime.compiled": "errors targets shared parsing cache graph plan device.gemm device.by_index interpret runtime.call",
    "runtime.sharding": "graph spec plan runtime.call runtime.xla",
    "runtime.ops": "errors shared graph spec language plan stages autodiff tuning pipeline interpret"
    " runtime.call runtime.xla runtime.compiled runtime.sharding",
    "runtime": "runtime.call runtime.xla runtime.compiled runtime.ops",
    "tracing": "errors parsing graph spec language plan pipeline render",
    "fusing": "errors targets library graph spec language plan autodiff explain pipeline tracing",
    "checking": "errors extras shared graph spec plan autodiff runtime.call runtime.xla runtime.compiled runtime.ops",
    "measuring": "errors extras targets shared cache graph spec language plan tuning explain checking"
    " runtime.call runtime.compiled runtime.ops",
    "cli": "errors extras targets cache library graph spec language plan tuning pipeline render explain"
    " tracing fusing runtime.compiled runtime.ops checking measuring",
    "__main__": "cli",
}
WITHOUT_GPU_LIBRARIES = [*list(MAY_IMPORT)[: list(MAY_IMPORT).index("device")], "interpret"]
GPU_LIBRARIES = {"jax", "jaxlib", "cutlass", "cuda"}
MOST_MODULES = 13  # in a folder, `__init__` apart
MOST_LINES = 500
MOST_LINES_OF_FUNCTION = 60  # with its parameters and docstring
REASON = f"Longer than {MOST_LINES} lines"  # begins the sentence of a longer module's docstring that says why

Imports = dict[str, set[str]]  # a module to the modules that it imports


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements within a module or statement. Expressions, which hold most nodes of a tree, are left out."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, part, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)


def modules_of(package: Path) -> dict[str, Path]:
    """The modules of a package, by name; an `__init__.py` by the name of its folder."""
    files = [p for p in package.rglob("*.py") if "templates" not in p.parts]
    parts = {path: path.relative_to(package.parent).with_suffix("").parts for path in files}
    return {".".join(names).removesuffix(".__init__"): path for path, names in parts.items()}


def names_imported(module: str, path: Path) -> Iterator[tuple[str, ...]]:
    """The full names that a module imports; for each name from a package, itself as a module and the package."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((f"{base}.{alias.name}", base) for alias in node.names)


def imports_of(modules: dict[str, Path]) -> Imports:
    """The modules that each module imports, among those given."""
    found: Imports = {}
    for module, path in modules.items():
        known = ([n for n in names if n in modules] for names in names_imported(module, path))
        found[module] = {names[0] for names in known if names} - {module}
    return found


def row_of(module: str) -> str:
    """The row of the table that a module belongs to, "" for the package `codegen` itself."""
    own = module.removeprefix("codegen").removeprefix(".")
    while own and own not in MAY_IMPORT:
        own = own.rpartition(".")[0]
    return own


def wrong_arrows(imports: Imports) -> list[str]:
    """The imports that the table does not have."""
    pairs = [(module, other) for module, others in imports.items() for other in others]
    return sorted(
        f"{module} imports {other}"
        for module, other in pairs
        if row_of(other) not in ("", row_of(module), *MAY_IMPORT.get(row_of(module), "").split())
    )


def circle(imports: Imports) -> list[str]:
    """Modules that each import the next, and the last one the first; empty if there is no circle."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


MODULES = modules_of(ROOT / "codegen")


@functools.cache
def own_imports() -> Imports:
    """The program's imports. Each test process imports this module, but only one reads the sources."""
    return imports_of(MODULES)


def test_a_package_imports_what_the_table_says():
    assert wrong_arrows(own_imports()) == []


def test_the_table_has_a_row_for_each_package_and_each_row_names_rows_above_it():
    rows = list(MAY_IMPORT)
    assert {row_of(module) for module in MODULES} == {"", *rows}
    assert [
        f"{row}: {name}" for i, row in enumerate(rows) for name in MAY_IMPORT[row].split() if name not in rows[:i]
    ] == []


def test_no_modules_import_each_other():
    assert circle(own_imports()) == []


def test_what_comes_before_the_runtime_needs_no_library_of_the_gpu():
    found = [
        f"{module} imports {names[-1]}"
        for module, path in MODULES.items() if row_of(module) in WITHOUT_GPU_LIBRARIES
        for names in names_imported(module, path) if names[-1].partition(".")[0] in GPU_LIBRARIES
    ]  # fmt: skip
    assert found == []


def test_device_code_imports_no_jax():
    found = [m for m, path in MODULES.items() if row_of(m).startswith("device")
             for names in names_imported(m, path) if names[-1].partition(".")[0].startswith("jax")]  # fmt: skip
    assert found == []


def test_the_program_imports_nothing_that_is_generated_or_tests_it():
    others = {"generated", "cutefuse", "cutefuse_command", "tests", "benchmarks"}
    found = [
        m for m, path in MODULES.items() for names in names_imported(m, path) if names[-1].partition(".")[0] in others
    ]
    assert found == []


def test_folders_are_small_and_long_modules_say_why():
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    crowded = [f"{folder.relative_to(ROOT)}: {n} modules" for folder, n in folders.items() if n > MOST_MODULES]
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines, and its docstring does not say why ({REASON}: ...)"
        for path in MODULES.values()
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
        and REASON not in (ast.get_docstring(tree_of(path)) or "")
    ]
    assert crowded + long == []


def contents_of(package: Path) -> set[str]:
    """The modules and packages of a package."""
    files = {p.stem for p in package.glob("*.py")} | {p.parent.name for p in package.glob("*/__init__.py")}
    return files - {"__init__"}


def described_in(docstring: str) -> set[str]:
    """The modules that a package's docstring describes: each begins a line of a list, or is in backticks."""
    listed = re.findall(r"^  (\w+)/?  ", docstring, re.MULTILINE)
    return {*listed, *(name.rstrip("/") for name in re.findall(r"`([\w/]+)`", docstring))}


def test_a_package_says_what_each_of_its_modules_is_for():
    """The list in the docstring of `__init__.py`, in the order in which a newcomer should read."""
    packages = [p.parent for p in (ROOT / "codegen").rglob("__init__.py") if p.parent != ROOT / "codegen"]
    texts = {package: ast.get_docstring(tree_of(package / "__init__.py")) or "" for package in packages}
    lacking = [
        f"{package.relative_to(ROOT)}/__init__.py: describe {name} in its docstring"
        for package, text in texts.items()
        for name in sorted(contents_of(package) - described_in(text))
    ]
    gone = [
        f"{package.relative_to(ROOT)}/__init__.py: there is no {name}"
        for package, text in texts.items()
        for name in re.findall(r"^  (\w+)/?  ", text, re.MULTILINE)
        if name not in contents_of(package)
    ]
    assert lacking + gone == []


# The formatter moves a number between brackets where the line with its comment is too long
TORN = re.compile(
    r"^ *[\w, .]+(?:: [^=\n]+)? = \(\n *[^\s#\n,]+  # .*\n *\)$|^ *[\w, .]+ = \((?:\n *[^\s#\n]+,)+\n *\)  # (?!fmt)",
    re.MULTILINE,
)


def torn(text: str) -> list[str]:
    """Assignments that the formatter has torn apart, in order to keep a comment behind the value."""
    return [match[0] for match in TORN.finditer(text)]


def test_long_comments_stand_before_their_values():
    assert {str(path.relative_to(ROOT)): found for path in MODULES.values() if (found := torn(path.read_text()))} == {}
    assert torn("MOST = (\n    4  # of a thread\n)\n") and torn("A, B = (\n    1,\n    2,\n)  # of both\n")
    assert not torn("# Of a thread\nMOST = 4\nNAMES = (\n    'a',  # the first\n    'b',\n)\n")


def long_functions(modules: dict[str, Path]) -> list[str]:
    """The functions that have too many lines."""
    return [
        f"{module}.{node.name}: {lines} lines"
        for module, path in modules.items()
        for node in statements(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_FUNCTION
    ]


def test_functions_are_short(tmp_path):
    assert long_functions(MODULES) == []
    planted = tmp_path / "planted.py"
    planted.write_text("class A:\n    def f(self):\n" + "        pass\n" * MOST_LINES_OF_FUNCTION)
    assert long_functions({"planted": planted}) == ["planted.f: 61 lines"]


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("from codegen.plan import op\n", True),
        ("from codegen.plan.op import Op\n", True),
        ("import codegen.plan.op\n", True),
        ("from ..plan.op import Op\n", True),
        ("def f():\n    from codegen.plan.op import Op\n", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from codegen.plan.op import Op\n", True),
        ("from codegen import __version__\n", False),
        ("from codegen.errors import UserError\n", False),
    ],
)
def test_an_import_that_is_planted_is_found(tmp_path, more, wrong):
    """`plan/op` imports `graph/nodes`, and `graph/nodes` one `more`."""
    sources = {
        "__init__.py": "", "errors.py": "", "graph/__init__.py": "", "graph/nodes.py": more,
        "plan/__init__.py": "", "plan/op.py": "from codegen.graph.nodes import Node\n",
    }  # fmt: skip
    for name, text in sources.items():
        path = tmp_path / "codegen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = imports_of(modules_of(tmp_path / "codegen"))
    assert wrong_arrows(found) == (["codegen.graph.nodes imports codegen.plan.op"] if wrong else [])
    assert bool(circle(found)) == wrong


def names_of(path: Path) -> set[str]:
    """The names of a module: those that it defines or imports outside functions and classes."""
    found: set[str] = set()
    left: list[ast.AST] = [tree_of(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            left += ast.iter_child_nodes(node)
    return found


def test_what_others_import_of_the_program_is_there():
    """Tests that need a GPU, benchmarks and examples run rarely: they would not notice that a module moved."""
    files = [p for folder in ("tests", "benchmarks", "examples", "docs") for p in (ROOT / folder).rglob("*.py")]
    names = {module: names_of(path) for module, path in MODULES.items()}
    missing = [
        f"{path.relative_to(ROOT)}: {base}.{alias.name}"
        for path in files if path.parent.name != "generated"
        for node in statements(tree_of(path)) if isinstance(node, ast.ImportFrom)
        for base in [node.module or ""] if base.split(".")[0] == "codegen"
        for alias in node.names
        if f"{base}.{alias.name}" not in MODULES and alias.name not in names.get(base, set())
    ]  # fmt: skip
    assert missing == []


def test_no_test_imports_another():
    """Code that several tests need is in a module whose name says what it contains."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in statements(tree_of(path)):
            if isinstance(node, ast.ImportFrom):
                names = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
                modules = {name for name in names if name.startswith("test_")}
                assert not modules, f"{path} imports {modules}"


def test_tests_mirror_the_packages():
    """A folder of tests has the name of the package that it tests; tests of the whole program are above the folders."""
    specs = {ROOT / "tests/pure/good_specs", ROOT / "tests/pure/bad_specs"}
    for tests in (ROOT / "tests/pure", ROOT / "tests/cpu"):
        folders = {path.parent for path in tests.rglob("*.*") if "__pycache__" not in path.parts} - {tests} - specs
        missing = {
            folder for folder in folders if not (ROOT / "codegen" / folder.relative_to(tests) / "__init__.py").exists()
        }
        assert folders and not missing


def test_no_two_modules_of_tests_have_one_name():
    """pytest imports them by their names alone, and collects only one of two."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "generated")
    again = [name for name, count in names.items() if count > 1 and name not in ("__init__.py", "conftest.py")]
    assert again == []


def test_every_package_is_in_the_distribution():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    packages = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "codegen").rglob("__init__.py")}
    assert packages <= listed
