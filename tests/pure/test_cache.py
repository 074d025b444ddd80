"""The store of the cache of compiled kernels: the entries that it keeps, refuses and evicts."""

import itertools
import json
import os
import random
import subprocess
import sys
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from codegen import __main__ as command_line
from codegen import cache
from codegen.errors import UserError
from tests.turns import EVERY

PARTS = {"module": bytes(range(256)) * 40, "ptx": b".version 8.8\n" * 50, "nothing": b""}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.delenv("CODEGEN_CACHE_LIMIT", raising=False)
    return tmp_path / "kernels"


def run(monkeypatch, *words, status=0):
    monkeypatch.setattr(sys, "argv", ["codegen", "cache", *words])
    with pytest.raises(SystemExit, match=str(status)):
        command_line.main()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CODEGEN_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"CODEGEN_CACHE_DIR": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/cutefuse"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/cutefuse"),
        ({"HOME": "/h"}, "/h/.cache/cutefuse"),
    ],
)
def test_where_it_lies(environment, expected, monkeypatch):
    for name in ("CODEGEN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.location() == Path(expected)


def test_without_a_home_nothing_is_kept(monkeypatch, capsys):
    for name in ("CODEGEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    cache.store("relu", "key", PARTS)
    assert cache.load("relu", "key") is None
    run(monkeypatch, status=2)
    assert capsys.readouterr().err == "error: there is no home directory: name a folder in CODEGEN_CACHE_DIR\n"


def test_what_is_stored_comes_back(folder):
    assert cache.load("relu", "a key") is None
    cache.store("relu", "a key", PARTS)
    assert cache.load("relu", "a key") == PARTS
    assert cache.load("relu", "another key") is None
    assert cache.load("gelu", "a key") is None
    cache.store("relu", "a key", {"module": b"2"})
    assert cache.load("relu", "a key") == {"module": b"2"}
    assert [entry.kernel for entry in cache.entries(folder)] == ["relu"]
    assert folder.stat().st_mode & 0o777 == 0o700  # what lies there is run


def damaged(path):
    """The entry's bytes, with each kind of damage."""
    good = path.read_bytes()
    yield b""
    for length in (1, 20, len(good) // 2, len(good) - 1):
        yield good[:length]
    for place in (0, 17, 60, len(good) - 1):
        yield good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
    yield good + b"\0"
    yield b"\0" * len(good)


def test_a_damaged_entry_is_none_and_goes(folder):
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    for bad in list(damaged(path)):
        path.write_bytes(bad)
        assert cache.load("relu", "key") is None
        assert not path.exists()
        cache.store("relu", "key", PARTS)
        assert cache.load("relu", "key") == PARTS


def test_an_entry_under_anothers_name_is_none(folder):
    cache.store("relu", "key", PARTS)
    (own,) = folder.iterdir()
    cache.store("relu", "other", {"module": b"2"})
    (other,) = set(folder.iterdir()) - {own}
    other.write_bytes(own.read_bytes())
    assert cache.load("relu", "other") is None


@pytest.mark.parametrize("broken", ["a file", "an entry that is a folder", "not writable"])
def test_a_disk_that_refuses_is_no_error(broken, folder, monkeypatch):
    if broken == "a file":
        folder.write_text("in the way")
    else:
        cache.store("relu", "key", PARTS)
        (path,) = folder.iterdir()
        path.unlink()
    if broken == "an entry that is a folder":
        (path / "inside").mkdir(parents=True)
    if broken == "not writable":
        monkeypatch.setattr(cache.tempfile, "mkstemp", lambda *a, **k: os.open("/proc/no such file", os.O_WRONLY))
    cache.store("relu", "key", PARTS)
    assert cache.load("relu", "key") is None
    if folder.is_dir():
        assert [p for p in folder.iterdir() if p.suffix == ".part"] == []  # nothing unfinished stays


def test_a_folder_that_can_only_be_read_is_read(folder, monkeypatch):
    cache.store("relu", "key", PARTS)

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(cache.os, "utime", refuse)
    assert cache.load("relu", "key") == PARTS


def test_those_used_last_stay(folder, monkeypatch):
    cache.store("relu", "0", PARTS)
    (path,) = folder.iterdir()
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", str(33 * path.stat().st_size // 10))
    for i in range(1, 3):
        cache.store("relu", str(i), PARTS)
    for entry in folder.iterdir():
        os.utime(entry, (time.time() - (200 if entry == path else 100),) * 2)
    cache.load("relu", "0")  # the oldest of the three, and now the one used last
    cache.store("relu", "3", PARTS)
    assert cache.load("relu", "0") == PARTS
    assert cache.load("relu", "3") == PARTS
    assert len(cache.entries(folder)) == 3
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "0")
    cache.store("relu", "4", PARTS)
    assert cache.load("relu", "4") is None


def test_a_folder_with_much_room_is_listed_once(folder, monkeypatch):
    """Until this process has stored its share of the room: listing costs more than storing where there are many entries."""
    listed: list[object] = []
    monkeypatch.setattr(cache, "entries", lambda at, found=cache.entries: listed.append(at) or found(at))
    cache.store("relu", "0", PARTS)
    (path,) = folder.iterdir()
    size = path.stat().st_size
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", str(2 * size + 3 * 8 * size))
    for i in range(1, 6):
        cache.store("relu", str(i), PARTS)
    assert len(listed) == 1 + 1 + 1  # the first, the first under that limit, and the one after three more


def test_a_full_folder_is_listed_seldom(folder, monkeypatch):
    """A store that found the folder full evicts for those that follow too."""
    listed: list[object] = []
    monkeypatch.setattr(cache, "entries", lambda at, found=cache.entries: listed.append(at) or found(at))
    monkeypatch.setattr(cache, "_WRITERS", 1)
    cache.store("relu", "0", PARTS)
    (path,) = folder.iterdir()
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", str(32 * path.stat().st_size))
    for i in range(1, 32):
        cache.store("relu", str(i), PARTS)
    listed.clear()
    for i in range(32, 48):
        cache.store("relu", str(i), PARTS)
    assert 0 < len(listed) <= 16 // 2
    assert len([*folder.iterdir()]) <= 32


def test_what_nobody_finished_goes_after_a_while(folder):
    folder.mkdir(mode=0o700)
    old, young = folder / "tmp01234567.part", folder / "tmp_abcdefg.part"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    foreign = [folder / name for name in ("notes.txt", "download.part", "boot.kernel")]
    for path in foreign:
        path.write_text("mine")
        os.utime(path, (time.time() - 7200,) * 2)
    cache.store("relu", "1", PARTS)
    assert not old.exists()
    assert young.exists()
    cache.clear(folder)
    assert {*folder.iterdir()} == {*foreign}


# What lies there is run


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o700, ""), (0o755, ""), (0o770, "other users may write to it"), (0o702, "other users may write to it"),
        (0o777, "other users may write to it"),
    ],
)  # fmt: skip
def test_a_folder_that_others_may_write_to_is_refused(mode, why, folder, monkeypatch, capsys):
    cache.store("relu", "key", PARTS)
    folder.chmod(mode)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert cache.load("relu", "key") == (None if why else PARTS)
        cache.store("gelu", "key", PARTS)
    assert [why in str(w.message) and "`chmod go-w` it" in str(w.message) for w in found] == [True] * bool(why)
    assert len(cache.entries(folder)) == (1 if why else 2)
    run(monkeypatch)
    assert capsys.readouterr().out.splitlines()[-1] == cache.refusal(folder) or not why
    monkeypatch.setenv("CODEGEN_CACHE_TRUSTED", "1")
    assert cache.load("relu", "key") == PARTS


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    cache.store("relu", "key", PARTS)
    owner = folder.stat().st_uid
    monkeypatch.setattr(cache.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(cache, "_ROOT", owner + 2)
    with pytest.warns(RuntimeWarning, match=f"it belongs to user {owner}, and what lies there is run"):
        assert cache.load("relu", "key") is None
    monkeypatch.setattr(cache, "_ROOT", owner)  # who may change everything as it is
    assert cache.load("relu", "key") == PARTS


def test_an_entry_that_others_may_have_written_is_none(folder):
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert cache.load("relu", "key") is None
    cache.store("relu", "key", PARTS)
    assert cache.load("relu", "key") == PARTS


def a_link(path):
    path.with_name("elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to("elsewhere")


def made(make):
    """Puts something else in an entry's place."""

    def replace(path):
        path.unlink()
        make(path)

    return replace


@pytest.mark.parametrize(
    "replace",
    [
        made(os.mkfifo), made(os.mkdir), made(lambda path: path.symlink_to("nowhere")), a_link,
        made(lambda path: path.symlink_to("/dev/zero")), lambda path: os.truncate(path, 1 << 40),
    ],
    ids=["a pipe", "a folder", "a dead link", "a link", "a device", "very large"],
)  # fmt: skip
def test_what_is_no_file_of_the_cache_is_none_and_never_waited_for(replace, folder, monkeypatch, capsys):
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    replace(path)
    assert cache.load("relu", "key") is None
    run(monkeypatch)
    cache.store("relu", "key", PARTS)
    assert cache.load("relu", "key") == (None if path.is_dir() else PARTS)
    run(monkeypatch, "--clear")
    assert capsys.readouterr().err == ""
    assert path.is_dir() or not path.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no zlib", zlib.compress(b""), zlib.compress(b"no json\n"), zlib.compress(b"[3]\nabc"),
        zlib.compress(b'{"module": 4}\nabc'), zlib.compress(b'{"module": -1, "ptx": 4}\nabc'),
        zlib.compress(b'{"module": "3"}\nabc'), zlib.compress(b'{"module": 3}\nabc') + b"more",
        zlib.compress(b'{"module": 3}\nabc')[:-2], zlib.compress(b"[" * 100_000),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_a_right_checksum_makes_no_entry(body, folder):
    refuses(body, folder)


def test_what_unpacks_to_too_much_is_no_entry(folder):
    refuses(zlib.compress(bytes(1 << 27)), folder)


def refuses(body: bytes, folder: Path) -> None:
    """Asserts that a file with this body, and its checksum, is not read as an entry."""
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    path.write_bytes(cache._MAGIC + cache._checksum(body, "key") + body)
    assert cache.load("relu", "key") is None


@pytest.mark.parametrize(("text", "expected"), [("", 10**9), ("0", 0), ("12", 12), ("3k", 3000), (" 512M", 512 * 10**6), ("2GB", 2 * 10**9)])  # fmt: skip
def test_limits(text, expected, monkeypatch):
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", text)
    assert cache.limit() == expected


@pytest.mark.parametrize("text", ["lots", "-1", "1.5G", "1T", "1e9", "9" * 16])
def test_a_bad_limit_says_what_it_should_be(text, folder, monkeypatch, capsys):
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", text)
    with pytest.raises(UserError):
        cache.limit()
    run(monkeypatch, status=2)
    expected = f"error: CODEGEN_CACHE_LIMIT is '{text}'\n  it is a number of bytes, as in 512M or 2G; 0 keeps none\n"
    assert capsys.readouterr().err == expected


WRITER = """
import sys
from codegen import cache
for i in range(60):
    mark = f"{sys.argv[1]} {i}".encode()
    cache.store("relu", str(i % 3), {"module": mark * 5000, "mark": mark})
    found = cache.load("relu", str(i % 3))
    if found is not None:
        assert found["module"] == found["mark"] * 5000
        print("whole")
"""


def start_writer(name, environment):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER.replace("range(60)", "range(10**9)"), name],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_killed_writers_leave_whole_entries(folder):
    """And unfinished files, which are removed later."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    chance = random.Random(0)
    for kill in range(200 if EVERY else 10):
        writer = start_writer(str(kill), environment)
        assert writer.stdout.readline() == "whole\n"
        time.sleep(chance.random() / 20)
        writer.kill()
        assert writer.communicate()[1] == ""
        found = [cache.load("relu", str(key)) for key in range(3)]
        assert all(parts is None or parts["module"] == parts["mark"] * 5000 for parts in found)
        assert any(found)
    cache.clear(folder)
    assert not [*folder.iterdir()]


def test_thousands_of_damages(folder):
    """Each entry is whole, or is not used."""
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    good, chance = path.read_bytes(), random.Random(0)
    for _ in range(20_000 if EVERY else 500):
        bad = damage(good, chance)
        path.write_bytes(bad)
        assert (cache.load("relu", "key") is None) == (bad != good)


def damage(good, chance):
    """Bytes with something changed, lost, doubled, moved or added."""
    bad = bytearray(good)
    for _ in range(chance.choice((1, 1, 2, 10))):
        first, last = sorted(chance.choices(range(len(bad) + 1), k=2))
        place = chance.randrange(len(bad) + 1)
        match chance.randrange(6):
            case 0:
                bad[first : first + 1] = chance.randbytes(1)
            case 1:
                del bad[first:last]
            case 2:
                bad[place:place] = bad[first:last]
            case 3:
                bad[first:last] = bytes(last - first)
            case 4:
                bad[first:last] = chance.randbytes(last - first)
            case 5:
                del bad[first:]
    return bytes(bad)


def test_many_writers_never_show_each_other_half_an_entry(folder):
    """Also if they evict each other's entries."""
    environment = os.environ | {"CODEGEN_CACHE_LIMIT": "2000", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def write(name):
        return subprocess.run(
            [sys.executable, "-c", WRITER, name], env=environment, capture_output=True, text=True, check=False
        )

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(write, "abcd"))
    assert [d.stderr for d in done] == [""] * 4
    assert sum(d.stdout.count("whole") for d in done) > 60
    assert {p.suffix for p in folder.iterdir()} <= {".kernel"}


# The command


def test_the_command_shows_and_clears(folder, monkeypatch, capsys):
    for kernel, key in (("relu", "1"), ("relu", "2"), ("bias_gelu", "1")):
        cache.store(kernel, key, PARTS)
    sizes = {entry.path.name: entry.size for entry in cache.entries(folder)}
    run(monkeypatch, "--json")
    made = json.loads(capsys.readouterr().out)
    assert (made["location"], made["limit"], made["entries"], made["cleared"]) == (str(folder), 10**9, 3, False)
    assert made["bytes"] == sum(sizes.values())
    assert list(made["kernels"]) == ["bias_gelu", "relu"]
    assert made["kernels"]["relu"]["entries"] == 2
    assert made["kernels"]["bias_gelu"]["bytes"] == next(
        n for name, n in sizes.items() if name.startswith("bias_gelu-")
    )
    assert abs(made["kernels"]["relu"]["used"] - time.time()) < 100
    run(monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 3 entries, {sum(sizes.values()) / 1e3:.1f} kB of at most 1000.0 MB"
    assert [line.split()[:2] for line in lines[1:]] == [["bias_gelu", "1"], ["relu", "2"]]
    run(monkeypatch, "--clear")
    assert capsys.readouterr().out.startswith("removed 3 entries, ")
    assert cache.load("relu", "1") is None
    run(monkeypatch)
    assert capsys.readouterr().out == f"{folder}: 0 entries, 0.0 kB of at most 1000.0 MB\n"


def test_the_command_shows_names_escaped(folder, monkeypatch, capsys):
    """And dates that are not dates."""
    folder = folder.with_name("ker\x1b[31mnels")
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(folder))
    cache.store("relu", "key", PARTS)
    (path,) = folder.iterdir()
    for name in (b"\x1b]0;title\x07", b"two\nlines", b"\xff", "\u202eulerg".encode()):
        os.link(path, os.fsencode(folder) + b"/" + name + b"-" + b"0" * 64 + b".kernel")
    monkeypatch.setattr(cache.time, "localtime", lambda _: int("no date"))
    run(monkeypatch)
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[0].startswith(str(folder.parent) + r"/ker\x1b[31mnels: 5 entries")
    assert {line.split()[0] for line in lines[1:-1]} == {
        r"\x1b]0;title\x07", r"two\nlines", r"\udcff", r"\u202eulerg", "relu"
    }  # fmt: skip
    run(monkeypatch, "--clear")
    assert capsys.readouterr().out.split("\n")[0].isprintable()


def test_the_command_needs_neither_jax_nor_cutlass(folder):
    code = "import sys\nfrom codegen.cli.program import app\napp(['cache'], standalone_mode=False)\nprint({'jax', 'cutlass'} & sys.modules.keys())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
