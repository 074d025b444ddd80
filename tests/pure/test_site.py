"""The site: its pages exist, and the gallery's pages are made from specs, without the libraries that build the site."""

import re

import pytest
import yaml

from codegen.pipeline import read_op
from docs.site import gallery
from docs.site.formula import Formula
from tests.places import ROOT


def pages(entry: object) -> set[str]:
    """The pages in a part of mkdocs.yml's `nav`."""
    if isinstance(entry, str):
        return {entry}
    return {page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)}


def test_the_pages_of_the_site_exist():
    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    made = {"ops/index.md", *re.findall(r'"(\w+\.md)"', (ROOT / "docs/site/hooks.py").read_text())}
    kept = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert nav <= made | kept
    assert kept <= nav


@pytest.mark.parametrize(
    "name", ["rmsnorm", "causal_softmax", "dense_gelu", "bias_grad", "quantize_row_fp8", "alibi_bias"]
)
def test_an_op_has_a_page(name):
    op = read_op(ROOT / f"specs/{name}.yaml")
    page = gallery.page(op)
    headings = re.findall(r"^## (\w+)", page, re.MULTILINE)
    assert headings == ["Formula", "Spec", "Call", "Graph", "Plan", "Accuracy", "Speed", "Gradient", "Kernel"]
    assert op.spec.summary in page
    assert f"def {name}(" in page
    assert f"def {name}_launch(" in page
    assert page.count("```") % 2 == 0


def test_the_speed_of_a_page_is_measured():
    page = gallery.page(read_op(ROOT / "specs/rmsnorm.yaml"))
    assert "| forward | ... = 65536, N = 4096 | bfloat16 | 369 us | 368 us | 1.00x | 0.99 |" in page
    assert "| backward | ... = 65536, N = 4096 | bfloat16 | 580 us | 1120 us | 1.93x | 0.95 |" in page
    assert "Not measured yet" in gallery.page(read_op(ROOT / "specs/clamp.yaml"))


@pytest.mark.parametrize(
    ("statement", "formula"),
    [
        ("y = x * (a + b) - -c", r"y = x\,\left(a + b\right) - \left(-c\right)"),
        ("y = a - (b - c)", r"y = a - \left(b - c\right)"),
        ("y[0] = rsqrt(mean(square(x), axis=N) + eps)",
         r"y_{0} = \frac{1}{\sqrt{\operatorname{mean}_{N}\left({x}^{2}\right) + \varepsilon}}"),
        ("y = square(a + b) / 1e-10", r"y = \frac{{\left(a + b\right)}^{2}}{10^{-10}}"),
        ("y = sum(a + b, axis=...)", r"y = \sum_{\ldots} \left(a + b\right)"),
        ("y = where((a < b) & c, row_scale, -inf)",
         r"y = \begin{cases} \text{row_scale} & \text{if } \left(a < b\right) \wedge c \\ -\infty & \text{else} \end{cases}"),
        ("y = cast(round(a), int8)",
         r"y = \operatorname{cast}_{\text{int8}}\left(\operatorname{round}\left(a\right)\right)"),
    ],
)  # fmt: skip
def test_formulas(statement, formula):
    assert Formula({}, []).statements(statement) == [formula]


def test_a_product_is_a_sum_over_the_axis_that_is_contracted():
    op = read_op(ROOT / "specs/dense_gelu.yaml")
    assert gallery.formulas(op, op.spec.chain.value).startswith("```math\nz = \\sum_{K} x\\,w + \\text{bias}\n```")
