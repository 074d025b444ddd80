"""`codegen export`: the content of an artifact, what it runs without, and the errors."""

import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import generated
from codegen import __main__ as command_line
from codegen.cli.files.outputs import put
from codegen.errors import UserError
from codegen.pipeline import read_op
from codegen.runtime.compiled import interpreted, kernels
from codegen.runtime.ops.export import export, read_params, read_wanted
from tests.gpu import run_exported
from tests.making import make_op, spec_text
from tests.places import ROOT
from tests.turns import some

CUDA = 190  # EM_CUDA


def run(monkeypatch, *words, status=0):
    monkeypatch.setattr(sys, "argv", ["codegen", "export", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == status


def made(monkeypatch, capsys, path, *words):
    """The report of an artifact, and the artifact."""
    run(monkeypatch, *words, "--out", path, "--json")
    report = json.loads(capsys.readouterr().out)
    data = path.read_bytes()
    assert (report["bytes"], report["file"]) == (len(data), str(path))
    return report, jax.export.deserialize(bytearray(data))


def objects(module: str) -> list[bytes]:
    """The launchers in an artifact's text."""
    found = re.findall(r'custom_call @CuteDSLRT_NvJaxCutlassCall_v\d.*?module = "((?:[^"\\]|\\.)*)"', module)
    escape = re.compile(r'\\([0-9A-F]{2}|["\\nt])')
    special = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    return [escape.sub(lambda m: special.get(m[1]) or chr(int(m[1], 16)), text).encode("latin-1") for text in found]


def cubin(launcher: bytes) -> ELFFile:
    """The GPU code in a launcher's object file."""
    assert launcher[:4] == b"\x7fELF"
    for match in re.finditer(b"\x7fELF", launcher[4:]):
        inner = ELFFile(io.BytesIO(launcher[4 + match.start() :]))
        if inner.header["e_machine"] in (CUDA, "EM_CUDA"):
            return inner
    raise AssertionError("no cubin in the launcher")


ARTIFACTS = [
    ("bias_relu", "...=rows,N=4096", [], ["rows,4096", "4096"], ["rows,4096"], ["rows"], ["rows >= 1"]),
    ("bias_relu", "...=(), N = 64", [], ["64", "64"], ["64"], [], []),
    (
        "bias_relu", "...=(b, 3, s),N=8*n", [], ["b,3,s,8*n", "8*n"], ["b,3,s,8*n"], ["b", "s", "n"],
        ["b >= 1", "s >= 1", "n >= 1", "N % 8 == 0"],
    ),
    ("swiglu", "...=16,N=n", [], ["16,2*n"], ["16,n"], ["n"], ["n >= 1"]),
    ("rmsnorm", "...=rows,N=n", ["--param", "eps=1e-5"], ["rows,n", "n"], ["rows,n"], ["rows", "n"], ["rows >= 1", "n >= 1"]),
    ("rmsnorm", "...=n,N=n", [], ["n,n", "n"], ["n,n"], ["n"], ["n >= 1"]),
    ("gemma_rmsnorm", "...=rows,N=512", ["--vjp"], ["rows,512", "512"], ["rows,512"], ["rows"], ["rows >= 1"]),
    ("bias_grad", "...=2*rows,N=4096", [], ["2*rows,4096"], ["4096"], ["rows"], ["rows >= 1", "... % 2 == 0"]),
    ("quantize_group_fp8", "...=rows,B=b", [], ["rows,128*b"], ["rows,128*b", "rows,b"], ["rows", "b"], ["rows >= 1", "b >= 1"]),
    ("axpby", "...=rows,N=64", [], ["rows,64", "rows,64", "", ""], ["rows,64"], ["rows"], ["rows >= 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "words", "inputs", "outputs", "symbolic", "constraints"), some(ARTIFACTS, 2))
def test_what_is_in_an_artifact(
    op, shape, words, inputs, outputs, symbolic, constraints, tmp_path, monkeypatch, capsys
):
    report, held = made(
        monkeypatch, capsys, tmp_path / "a", op, "--arch", "sm_90a", "--types", "T=bfloat16", "--shape", shape, *words
    )
    assert [",".join(a["shape"]) for a in report["inputs"]] == inputs
    assert [",".join(a["shape"]) for a in report["outputs"]] == outputs
    assert (report["symbolic"], report["constraints"]) == (symbolic, constraints)
    assert [",".join(map(str, a.shape)) for a in held.in_avals] == inputs
    assert [",".join(map(str, a.shape)) for a in held.out_avals] == outputs
    assert [a["dtype"] for a in report["inputs"]] == [str(a.dtype) for a in held.in_avals]
    assert [a["dtype"] for a in report["outputs"]] == [str(a.dtype) for a in held.out_avals]
    assert held.platforms == ("cuda",) and report["platforms"] == ["cuda"]
    assert held.fun_name == report["op"] == op
    assert held.has_vjp() == report["vjp"] == ("--vjp" in words)
    assert report["vjp_kernels"] == ("--vjp" in words)
    found = objects(held.mlir_module())
    assert len(found) == report["kernels"] == 1
    symbols = {s.name for s in cubin(found[0]).get_section_by_name(".symtab").iter_symbols()}
    assert any(f"{op}_kernel" in name or f"{op}_columns" in name for name in symbols)


def test_static_params_types_and_the_architecture_are_compiled_in(tmp_path, monkeypatch, capsys):
    def launcher(*words):
        base = ["rmsnorm", "--shape", "...=rows,N=4096", *words]
        _, held = made(monkeypatch, capsys, tmp_path / "a", *base)
        (found,) = objects(held.mlir_module())
        return found

    plain = launcher("--arch", "sm_90a", "--types", "T=bfloat16")
    assert launcher("--arch", "sm_90a", "--types", "T=bfloat16") == plain
    assert launcher("--arch", "sm_90a", "--types", "T=bfloat16", "--param", "eps=1e-6") == plain  # the default
    assert launcher("--arch", "sm_90a", "--types", "T=bfloat16", "--param", "eps=1e-3") != plain
    assert launcher("--arch", "sm_90a", "--types", "T=float16") != plain
    assert launcher("--arch", "sm_90a", "--types", "T=bfloat16", "--leave-out", "weight") != plain
    for arch, number in (("sm_90a", 90), ("sm_80", 80)):
        flags = cubin(launcher("--arch", arch, "--types", "T=bfloat16")).header["e_flags"]
        assert number in (flags & 0xFF, flags >> 8 & 0xFF)


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("op", "shape", "cases"),
    [
        ("rmsnorm", "...=rows,N=4096", [((1, 4096), (4096,)), ((5, 4096), (4096,))]),
        ("rmsnorm", "...=rows,N=n", [((3, 7), (7,)), ((2, 1031), (1031,)), ((2, 40000), (40000,))]),
        ("rmsnorm", "...=rows,N=8*n", [((3, 8), (8,)), ((2, 2056), (2056,))]),
        ("bias_relu", "...=rows,N=n", [((3, 7), (7,)), ((9, 257), (257,))]),
        ("bias_grad", "...=rows,N=n", [((1, 5),), ((67, 300),)]),
    ],
)
def test_one_artifact_s_kernel_serves_every_extent(op, shape, cases, tmp_path, monkeypatch, capsys):
    """The test takes the launcher from the artifact, by the call that it was compiled for, and the interpreter runs its
    PTX."""
    calls, launch = [], kernels.launch

    def recording(call, operands, outputs, pairs):
        calls.append((call, tuple(output.shape for output in outputs)))
        return launch(call, operands, outputs, pairs)

    monkeypatch.setattr(kernels, "launch", recording)
    monkeypatch.setattr(run_exported, "EPS", 1e-6)
    words = ("--arch", "sm_90a", "--types", "T=float32", "--shape", shape)
    _, held = made(monkeypatch, capsys, tmp_path / "a", op, *words)
    ((call, outputs),) = set(calls)
    assert objects(held.mlir_module()) == [kernels.binary(call).module]
    for shapes in cases:
        inputs = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
        sizes = {"rows": shapes[0][0], "n": shapes[0][1], "8*n": shapes[0][1]}
        found = [tuple(sizes.get(str(n)) or int(n) for n in output) for output in outputs]
        names = [f"a{i}" for i in range(len(inputs) + len(found))]
        got, *_ = interpreted.run(call, names, inputs, found)
        wanted = run_exported.expected(op, list(map(jnp.asarray, inputs)))
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


# Without this program


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifacts")
    with pytest.MonkeyPatch.context() as patch:
        for name in some(run_exported.ARTIFACTS, 1, 4):
            run(patch, *run_exported.ARTIFACTS[name][0], *run_exported.COMMON, "--out", folder / name)
    return folder


def test_artifacts_are_loaded_in_a_process_without_this_program(artifacts, tmp_path):
    """And run, if they have a part for the CPU."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CUTE_DSL_ARCH")}
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if not (Path(path) / "codegen").exists())
    script = tmp_path / "run_exported.py"
    script.write_text((ROOT / "tests/gpu/run_exported.py").read_text())
    done = subprocess.run(
        [sys.executable, str(script), str(artifacts)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    on_cpu = "agrees with jnp on cpu for 1, 7, 131 rows"
    lines = [
        "bias_relu: loaded; it is for cuda",
        "bias_relu_open: loaded; it is for cuda",
        f"swiglu_eights: {on_cpu}",
        "rmsnorm: loaded; it is for cuda",
        f"rmsnorm_open: {on_cpu}",
        f"bias_grad: {on_cpu}",
        f"rmsnorm_vjp: {on_cpu}, its VJP too",
    ]
    assert done.stdout.splitlines() == some(lines, 1, 4)


def test_a_wrong_artifact_is_noticed(artifacts, monkeypatch):
    words = [w.replace(f"eps={run_exported.EPS}", "eps=0.5") for w in run_exported.ARTIFACTS["rmsnorm_open"][0]]
    run(monkeypatch, *words, *run_exported.COMMON, "--out", artifacts / "wrong_eps")
    with pytest.raises(AssertionError, match="Mismatched elements"):
        run_exported.run("rmsnorm_open", (artifacts / "wrong_eps").read_bytes())


def test_a_vjp_is_a_kernel_where_its_extents_allow_one(tmp_path, monkeypatch, capsys):
    for extent, kernels_ in some(
        (("n", 1), ("4096", 1)), 2
    ):  # it does not know the number of rows, so it reads them twice
        words = ("--arch", "sm_90a", "--types", "T=bfloat16", "--shape", f"...=rows,N={extent}", "--vjp")
        report, held = made(monkeypatch, capsys, tmp_path / "a", "rmsnorm", *words)
        found = objects(held.vjp().mlir_module())
        assert report["vjp_kernels"] == sum(b"rmsnorm_backward_kernel" in one for one in found) == kernels_


def test_a_contraction_may_be_xla_s_before_a_kernel_of_its_epilogue(tmp_path):
    """If no tile can compute the epilogue, or one kernel is not faster; the reported launch is the kernel's."""
    of_rows = spec_text("x: bfloat16[..., K]; w: bfloat16[K, N]", "y: bfloat16[..., N]", "y = softmax(x @ w, axis=N)")
    for op, columns in ((make_op(tmp_path, of_rows), 256), (generated.dense_relu, 255), (generated.dense_relu, 256)):
        shape = f"...=64,K=128,N={columns}"
        types = {name: "bfloat16" for name, _ in op.spec.types}
        wanted = read_wanted(op.spec, shape, types, [], [], "sm_90a", "cuda", True)
        data, report = export(op, wanted)
        text = jax.export.deserialize(bytearray(data)).mlir_module()
        in_one = columns == 256 and op is generated.dense_relu
        assert ("dot_general" in text) == (not in_one)
        assert report["kernels"] == 1 and ("tile_m" in str(report["launch"])) == in_one


def test_what_is_left_to_xla_is_exported_as_its_form(tmp_path, monkeypatch, capsys):
    words = ("--arch", "sm_90a", "--types", "T=bfloat16", "--shape", "...=1,N=8388608")
    report, held = made(monkeypatch, capsys, tmp_path / "a", "softmax", *words)
    assert report["left_to_xla"] == "one row of 16.8 MB would leave most of a GPU idle"
    assert (report["kernels"], report["launch"], objects(held.mlir_module())) == (0, {}, [])
    run(monkeypatch, "softmax", *words, "--out", tmp_path / "b")
    assert "  as XLA's form, which is faster: one row of 16.8 MB" in capsys.readouterr().out


def test_interpreting_is_not_exporting(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CODEGEN_INTERPRET", "1")
    words = ("--arch", "sm_90a", "--types", "T=bfloat16", "--shape", "...=rows,N=64")
    report, _ = made(monkeypatch, capsys, tmp_path / "a", "relu", *words)
    assert report["kernels"] == 1
    assert os.environ["CODEGEN_INTERPRET"] == "1"


def test_several_outputs_are_a_tuple_and_dynamic_params_arguments(tmp_path, monkeypatch, capsys):
    both = ("--arch", "sm_90a", "--types", "T=float32", "--platforms", "cpu,cuda")
    report, held = made(monkeypatch, capsys, tmp_path / "a", "add_rmsnorm", *both, "--shape", "...=rows,N=64")
    assert [a["name"] for a in report["outputs"]] == ["y", "residual_out"]
    x = jnp.ones((3, 64))
    y, residual = held.call(x, 2 * x, jnp.ones(64))
    np.testing.assert_allclose(residual, 3 * x)
    np.testing.assert_allclose(y, x, rtol=1e-5)
    report, held = made(monkeypatch, capsys, tmp_path / "a", "axpby", *both, "--shape", "...=rows,N=64")
    assert [(a["name"], a["dtype"]) for a in report["inputs"]] == [
        ("x", "float32"), ("y", "float32"), ("alpha", "float32"), ("beta", "float32"),
    ]  # fmt: skip
    np.testing.assert_array_equal(held.call(x, 2 * x, jnp.float32(2), jnp.float32(3)), 8 * x)


def test_float64_needs_no_setting_to_be_made(tmp_path, monkeypatch, capsys):
    report, held = made(
        monkeypatch,
        capsys,
        tmp_path / "a",
        "float64_polynomial",
        "--arch",
        "sm_90a",
        "--shape",
        "...=rows,N=8",
        "--types",
        "T=float64",
    )
    assert report["x64"] and [a.dtype.name for a in held.in_avals] == ["float64"]
    assert not jax.config.jax_enable_x64


# Errors


BASE = {"--arch": "sm_90a", "--shape": "...=rows,N=4096", "--types": "T=bfloat16"}


@pytest.mark.parametrize(
    ("op", "changed", "message"),
    [
        ("bias_rel", {}, "no op 'bias_rel' in generated. Did you mean 'bias_relu', "),
        ("bias_relu", {"--arch": "sm_1"}, "no architecture 'sm_1'\n  there are: sm_100, "),
        ("bias_relu", {"--arch": "sm_80,sm_90a"}, "--arch sm_80,sm_90a: an artifact is for one architecture\n"),
        (
            "bias_relu",
            {"--shape": ""},
            "--shape lacks ..., N\n  give a number, or a name for any size: ...=rows, N=n\n",
        ),
        ("bias_relu", {"--shape": "...=rows"}, "--shape lacks N\n  give a number, or a name for any size: N=n\n"),
        (
            "bias_relu",
            {"--shape": "...=rows,M=8"},
            "bias_relu has no axis 'M'\n  its axes: ..., N.\n",
        ),
        ("bias_relu", {"--shape": "...=rows,N=8,N=9"}, "the axis N is given twice in '...=rows,N=8,N=9'\n"),
        (
            "bias_relu",
            {"--shape": "rows"},
            "cannot read 'rows' of the shape 'rows'\n  write it as in ...=rows,N=4096 or ...=(batch, 128),N=8*n\n",
        ),
        *(
            (
                "bias_relu",
                {"--shape": f"...=rows,N={extent}"},
                f"cannot read '{extent}' as the size of N\n"
                "  write it as in ...=rows,N=4096 or ...=(batch, 128),N=8*n\n",
            )
            for extent in ("0", "-8", "n+1", "n*8", "mod", "8.5", "(a)", "0*n")
        ),
        ("quantize_group_fp8", {"--shape": "...=rows,B=b,G=64"}, "the spec fixes G at 128\n"),
        (
            "bias_relu",
            {"--types": ""},
            "--types must say which dtype T is\n  one of float32, float16, bfloat16: T=float32\n",
        ),
        (
            "bias_relu",
            {"--types": "T=int8"},
            "T cannot be 'int8'\n  T may be: bfloat16, float16, float32.\n",
        ),
        ("bias_relu", {"--types": "S=int8"}, "bias_relu has no type variable 'S'\n  it has: T.\n"),
        ("bias_relu", {"--param": "eps=1"}, "bias_relu has no param 'eps'\n  its static params: nothing.\n"),
        (
            "rmsnorm",
            {"--param": "esp=1"},
            "rmsnorm has no param 'esp'\n  its static params: eps. Did you mean 'eps'?\n",
        ),
        ("rmsnorm", {"--param": "eps"}, "cannot read --param 'eps'\n  write it as in eps=1e-5\n"),
        ("rmsnorm", {"--param": "eps=small"}, "the param eps is a number of type float, not 'small'\n"),
        (
            "axpby",
            {"--param": "alpha=1"},
            "alpha is dynamic\n  it is an argument of the artifact, behind the inputs\n",
        ),
        (
            "bias_relu",
            {"--leave-out": "bias"},
            "bias_relu has no input 'bias' that may be left out\n  it has: nothing.\n",
        ),
        ("bias_relu", {"--platforms": "tpu"}, "no platform 'tpu'\n  There are: cpu, cuda. Did you mean 'cpu'?\n"),
        (
            "bias_relu",
            {"--platforms": "cpu"},
            "an artifact without the platform cuda would have no kernel\n  as in --platforms cuda,cpu\n",
        ),
        (
            "gelu_fp8",
            {"--arch": "sm_80", "--shape": "...=rows,N=64"},
            "gelu_fp8: 'q' is float8_e4m3fn, which sm_80 cannot convert; its kernel needs sm_89 or newer\n",
        ),
        (
            "bias_relu",
            {"--shape": "...=rows,N=4294967296"},
            "bias_relu: 4294967296 N are more than the 2147483583 that a kernel's coordinate holds; split the array\n",
        ),
        *(
            (
                op,
                {"--shape": shape},
                f"{op}: {extent} are more than the 2147483583 that a kernel's coordinate holds; split the array\n",
            )
            for op, shape, extent in (
                ("rmsnorm", "...=rows,N=1099511627776*n", "1099511627776*n N"),
                ("rmsnorm", "...=(1048576*a,1048576*b),N=16", "1099511627776*a*b ..."),
                ("sigmoid", "...=65536*rows,N=65536", "4294967296*rows elements that do not factor"),
                ("dense", "...=4,N=16,K=1099511627776*k", "1099511627776*k K"),
                ("dense", "...=1099511627776,N=16,K=16", "1099511627776 ..."),
            )
        ),
        ("bias_grad", {"--shape": "...=_,N=4"}, "cannot read '_' as the size of ...\n  write it as"),
        ("bias_grad", {"--out": "missing/a"}, "--out missing/a: missing is no folder\n"),
        ("bias_grad", {"--out": "generated"}, "--out generated: it is a folder\n"),
    ],
)
def test_errors_are_one_message_and_nothing_is_written(op, changed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generated").symlink_to(ROOT / "generated")
    options = {"--out": "a", "--package": "generated"} | BASE | changed
    run(monkeypatch, op, *(w for pair in options.items() for w in pair if w is not None), status=2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {message}")
    if message.endswith("\n"):
        assert printed.err == f"error: {message}"
    assert [p.name for p in tmp_path.iterdir()] == ["generated"]


@pytest.mark.whole
def test_a_vjp_that_only_jnp_has_may_need_its_extents(tmp_path, monkeypatch, capsys):
    """The backward of so many operations is none of a kernel."""
    (tmp_path / "specs").mkdir()
    steps = "; ".join(f"v{i + 1} = v{i} * v{i} + x" for i in range(210))
    chain = f"v0 = x * w; {steps}; y = sum(v210, axis=...) * prod(x, axis=...)"
    text = spec_text("x: float32[..., N]; w: float32[N]", "y: float32[N]", chain)
    (tmp_path / "specs/made.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = (
        "made",
        "--package",
        "of_tables",
        "--arch",
        "sm_90a",
        "--shape",
        "...=rows,N=64",
        "--out",
        "a",
        "--vjp",
    )
    monkeypatch.setattr(sys, "argv", ["codegen", "build", "--specs", "specs", "--out", "of_tables", "--tests", ""])
    with pytest.raises(SystemExit):
        command_line.main()
    capsys.readouterr()
    run(monkeypatch, *words, status=2)
    assert capsys.readouterr().err == (
        "error: JAX cannot export the jnp form or the VJP of made for unknown sizes\n"
        "  give a number for each of rows, or leave out --vjp and the platform cpu\n"
    )
    assert not (tmp_path / "a").exists()


def test_params_are_read_as_their_kinds_and_those_without_a_default_asked_for():
    text = (
        "op: chosen\nsummary: S.\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\n"
        "params:\n  scale: {type: float}\n  power: {type: int, default: 2}\n  on: {type: bool, default: true}\n"
        "chain: y = where(on, x * scale + power, x)\nreference: jnp.where(on, x * scale + power, x)\n"
    )
    spec = read_op("specs/chosen.yaml", text).spec
    found = read_params(spec, ["on=False", "scale=-2.5e-1", "power = 3"])
    assert found == {"scale": -0.25, "power": 3, "on": False}
    assert [type(value) for value in found.values()] == [float, int, bool]
    assert read_params(spec, ["scale=1"]) == {"scale": 1.0, "power": 2, "on": True}
    for words, message in (
        ([], "chosen needs the float param scale"),
        (["scale=1", "power=2.5"], "the param power is a number of type int, not '2.5'"),
        (["scale=1", "on=1"], "the param on is true or false, not '1'"),
        (["scale=1", "power=3000000000"], "the param power is an int of 32 bits, and 3000000000 is out of its range"),
        (["scale=1", "scale=2"], "the param scale is given twice"),
    ):
        with pytest.raises(UserError) as caught:
            read_params(spec, words)
        assert caught.value.message == message


def test_an_input_that_is_left_out_leaves_its_dtype_to_the_command(tmp_path, monkeypatch, capsys):
    words = ("scaled_matmul_fp8", "--arch", "sm_90a", "--shape", "...=rows,K=1024,N=1024", "--leave-out", "bias")
    for dtype in some(("float16", "bfloat16"), 2):
        more = ("--types", f"A=float8_e5m2,B=float8_e4m3fn,T={dtype}")
        report, artifact = made(monkeypatch, capsys, tmp_path / dtype, *words, *more)
        assert [a["dtype"] for a in report["outputs"]] == [a.dtype.name for a in artifact.out_avals] == [dtype]


def test_a_link_is_followed_and_a_pipe_written_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    put(tmp_path / "link", b"one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"one"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        put(tmp_path / "pipe", b"two")
        assert read.result() == b"two"
    assert (tmp_path / "pipe").is_fifo()


def test_a_vjp_needs_a_gradient(tmp_path, monkeypatch, capsys):
    words = ("--arch", "sm_90a", "--shape", "...=rows,B=b", "--types", "T=float32", "--vjp", "--out", tmp_path / "a")
    run(monkeypatch, "quantize_group_fp8", *words, status=2)
    assert capsys.readouterr().err == "error: quantize_group_fp8 has no gradient to export\n"


def test_an_artifact_replaces_an_older_one_whole(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    words = ("--arch", "sm_90a", "--shape", "...=rows,N=8", "--types", "T=float32", "--out", path)
    run(monkeypatch, "relu", *words, status=2)
    assert capsys.readouterr().err == f"error: {path}: no space left\n"
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


def test_the_text_says_what_was_made(tmp_path, monkeypatch, capsys):
    words = "--arch sm_90a --shape ...=rows,N=8*n --types T=bfloat16 --vjp --platforms cuda,cpu".split()
    run(monkeypatch, "rmsnorm", *words, "--out", tmp_path / "a")
    size = (tmp_path / "a").stat().st_size
    assert capsys.readouterr().out == (
        f"wrote {tmp_path / 'a'}: {size} bytes for sm_90a on cuda, cpu\n"
        "  x: bfloat16[rows, 8*n]\n  weight: bfloat16[8*n]\n  -> y: bfloat16[rows, 8*n]\n"
        "  where rows >= 1, n >= 1, N % 8 == 0\n  with its VJP, a kernel too\n"
    )
