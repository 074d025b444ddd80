"""What a build keeps of each spec: which specs are rendered again, and that the files are the same."""

import pytest

from codegen import cache
from codegen.cli.files import kept
from codegen.tuning.file import FOLDER
from tests.pure.building import contents, write_specs


@pytest.fixture
def rendered(tmp_path, monkeypatch, run):
    """Runs `codegen` on the specs a and b; returns the names of those that it renders."""
    monkeypatch.setenv("CODEGEN_BUILD_CACHE", "1")
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(tmp_path / "cache"))
    write_specs(tmp_path / "specs", a=1.0, b=1.0)
    found, of_each = [], kept.of_each
    monkeypatch.setattr(kept, "of_each", lambda paths, function: found.extend(paths) or of_each(paths, function))

    def rendered(*arguments, status=0):
        found.clear()
        assert run(*arguments).status == status
        return "".join(sorted(path.stem for path in found))

    return rendered


def test_a_repeated_build_renders_only_what_changed(tmp_path, rendered, monkeypatch):
    assert rendered("build") == "ab"
    first = contents(tmp_path / "generated")
    assert [rendered("build"), rendered("check")] == ["", ""]
    (tmp_path / "generated" / "a.py").unlink()
    assert rendered("check", status=1) == ""
    assert rendered("build") == "" and contents(tmp_path / "generated") == first
    write_specs(tmp_path / "specs", b=2.0)
    assert rendered("check", status=1) == "b"
    monkeypatch.setenv("CODEGEN_BUILD_CACHE", "0")
    assert rendered("build") == "ab"
    second = contents(tmp_path / "generated")
    assert second != first
    monkeypatch.setenv("CODEGEN_BUILD_CACHE", "1")
    assert rendered("build") == "" and contents(tmp_path / "generated") == second


def test_what_else_a_build_depends_on(tmp_path, rendered, monkeypatch):
    rendered("build")
    monkeypatch.setattr(kept, "_contents", lambda: "another version of the program")
    kept._generator.cache_clear()
    assert [rendered("build"), rendered("build")] == ["ab", ""]
    measured = tmp_path / "specs" / FOLDER
    measured.mkdir()
    (measured / "sm_90a.yaml").write_text("version: 1\nops: {}\n")
    assert [rendered("build"), rendered("build")] == ["ab", ""]
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "0")
    assert rendered("build") == "ab"
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "much")
    rendered("build", status=2)
    kept._generator.cache_clear()


def test_nothing_is_kept_of_a_build_while_the_program_changes(rendered, monkeypatch):
    versions = iter("12345678")
    monkeypatch.setattr(kept, "_contents", lambda: next(versions))
    kept._generator.cache_clear()
    assert [rendered("build"), rendered("build")] == ["ab", "ab"]
    kept._generator.cache_clear()


def test_errors_and_damaged_entries(tmp_path, rendered, monkeypatch):
    rendered("build")
    for path in (tmp_path / "cache").glob("a.yaml*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert [rendered("build"), rendered("build")] == ["a", ""]
    spec = tmp_path / "specs" / "b.yaml"
    spec.write_text(spec.read_text().replace("* x", "* unknown"))
    assert [rendered("build", status=2), rendered("build", status=2)] == ["b", "b"]
    monkeypatch.setattr(cache, "load", lambda *_: {"facts": b"[]"})
    assert rendered("build", status=2) == "ab"


def test_every_file_of_the_program_is_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr(kept.library, "folder", lambda _: tmp_path)
    seen = {kept._contents()}
    for name in ("a.py.jinja", "words.txt", "b.py"):
        (tmp_path / "inner").mkdir(exist_ok=True)
        for text in ("one", "two"):
            (tmp_path / "inner" / name).write_text(text)
            seen.add(kept._contents())
    assert len(seen) == 7
    names = {name for name, _ in kept._files(kept.Path(kept.codegen.__file__).parent, "")}
    assert {
        "/pipeline.py",
        "/plan/rows/launching/walking.py",
        "/language/prelude.txt",
        "/render/rows/column.py",
    } <= names
