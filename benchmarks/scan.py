"""PTX of an element-wise function in C: what a kernel computes, run on every float32 there is.

A kernel of one element is translated instruction by instruction, jumps included, so that what is measured is what the compiler
made. Instructions that PTX gives only an error bound (ex2, lg2, rcp, rsqrt, sqrt, tanh) return the exact value moved by the whole
bound, up or down by a hash of the operand.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

_HEAD = r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
static inline float F(uint32_t b) { float f; memcpy(&f, &b, 4); return f; }
static inline uint32_t B(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
static inline double D(uint64_t b) { double f; memcpy(&f, &b, 8); return f; }
static inline uint64_t BD(double f) { uint64_t b; memcpy(&b, &f, 8); return b; }
static inline float ftz(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
static inline double unit(double x) {  // of float32, at x
  double power = D(BD(x) & 0x7ff0000000000000ull);
  return (power < 0x1p-126 ? 0x1p-126 : power) * 0x1p-23;
}
static inline float off(double exact, double bound, float x) {
  if (!isfinite(exact) || exact == 0) return exact;
  return exact + ((B(x) * 2654435761u >> 13 & 1) ? bound : -bound);
}
static inline float ex2(float x) {
  double e = exp2(x);
  return e == trunc(e) || x == truncf(x) ? (float)e : off((float)e, 2 * unit(e), x);
}
static inline float lg2(float x) {
  double e = log2(x);
  return x >= 0.5f && x <= 2 ? off(e, 0x1p-22, x) : off(e, 0x1p-22 * fabs(e), x);
}
static inline float rcp(float x) { double e = 1 / (double)x; return off(e, unit(e), x); }
static inline float quotient(float a, float b) { double e = (double)a / b; return off(e, 2 * unit(e), b); }
static inline float rsq(float x) { double e = 1 / sqrt((double)x); return off(e, 0x1p-22 * 0.536 * e, x); }
static inline float sqa(float x) { double e = sqrt((double)x); return off(e, 0x1p-23 * e, x); }
static inline float toward_zero(float a, float b) {
  double e = (double)a + b;
  float f = e;
  return fabs(f) > fabs(e) ? F(B(f) - 1) : f;
}
static inline float down(double e) {
  float f = e;
  return f > e ? nextafterf(f, -INFINITY) : f;
}
static inline float sat(float x) { return !(x > 0) ? 0 : x > 1 ? 1 : x; }
static inline float mx(float a, float b) { return fmaxf(a, b); }
static inline float mn(float a, float b) { return fminf(a, b); }
static inline float mxn(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }
static inline float mnn(float a, float b) { return isnan(a) || isnan(b) ? NAN : fminf(a, b); }
#define SHR(a, n, w) ((n) >= w ? 0 : (a) >> (n))
#define SHL(a, n, w) ((n) >= w ? 0 : (a) << (n))
"""

# By function and mode: worst error in ulp (of normal numbers, or 2**-149), worst relative error, their arguments, specials that differ
_MAIN = r"""
int main(void) {
  enum { SETS = 3 };
  double ulps[SETS] = {0}, relative[SETS] = {0};
  uint32_t at[SETS] = {0}, relative_at[SETS] = {0}, wrong_at = 0;
  uint64_t wrong = 0;
  #pragma omp parallel for schedule(dynamic, 1)
  for (uint32_t chunk = 0; chunk < 4096; chunk++) {
    double u[SETS] = {0}, r[SETS] = {0};
    uint32_t ua[SETS] = {0}, ra[SETS] = {0}, wa = 0;
    uint64_t w = 0;
    for (uint32_t low = 0; low < 1u << 20; low++) {
      uint32_t b = chunk << 20 | low;
      float x = F(b);
      int half = !(b & 0x1fff) && fabsf(x) <= 65504 && (float)(_Float16)x == x;
      if (low % STEP && (b & 0xffff) && !half) continue;
      float got = run(x);
      double e = exact((double)x);
      float nearest = e;
      if (isnan(e) || isnan(got) || isinf(nearest) || e == 0) {
        int same = isnan(e) ? isnan(got) : isinf(nearest) ? got == nearest || (got == copysignf(0x1.fffffep127f, nearest) && isfinite(e)) : e == 0 && got == 0 && !signbit(got) == !signbit(e);
        if (!same) { w++; wa = b; }
        if (isnan(e) || isnan(got) || isinf(nearest)) continue;
      }
      double error = fabs((isinf(got) ? copysign(0x1p128, got) : got) - e), size = fabs(e) < 0x1p-126 ? 0x1p-126 : fabs(e);
      double units = error / unit(e), share = error / size;
      for (int s = 0; s < SETS; s++) {
        if (s == 1 && (b & 0xffff)) continue;
        if (s == 2 && !half) continue;
        if (units > u[s]) { u[s] = units; ua[s] = b; }
        if (share > r[s]) { r[s] = share; ra[s] = b; }
      }
    }
    #pragma omp critical
    {
      for (int s = 0; s < SETS; s++) {
        if (u[s] > ulps[s]) { ulps[s] = u[s]; at[s] = ua[s]; }
        if (r[s] > relative[s]) { relative[s] = r[s]; relative_at[s] = ra[s]; }
      }
      wrong += w;
      if (w) wrong_at = wa;
    }
  }
  printf("{\"wrong\": %lu, \"wrong_at\": \"%.9g\"", (unsigned long)wrong, F(wrong_at));
  const char *names[SETS] = {"float32", "bfloat16", "float16"};
  for (int s = 0; s < SETS; s++)
    printf(", \"%s\": {\"ulp\": %.4f, \"at\": \"%.9g\", \"relative\": %.4g, \"relative at\": \"%.9g\"}", names[s], fmin(ulps[s], 1e30), F(at[s]), fmin(relative[s], 1e30), F(relative_at[s]));
  printf("}\n");
  return 0;
}
"""


class Untranslated(Exception):
    """An instruction that this module does not know."""


def _operand(text: str, kind: str) -> str:
    """An operand as the bits that it is, or as a number of a type."""
    if text.startswith("%tid"):
        return "0"
    if text.startswith("%p"):
        return text[1:]
    if text.startswith("%"):
        return {"f32": f"F({text[1:]})", "f64": f"D({text[1:]})"}.get(kind, text[1:])
    if text.startswith("0f"):
        if kind == "b32":
            return f"0x{text[2:]}u"
        return f"F(0x{text[2:]}u)"
    if text.startswith("0d"):
        return f"D(0x{text[2:]}ull)"
    return f"{text}ll" if kind.endswith("64") else f"((uint32_t){text}ll)"


def _value(op: list[str], a: list[str]) -> str:
    """The C expression of an instruction's result, a number of the instruction's type."""
    name, kind, flush = op[0], op[-1], "ftz" in op
    x = [_operand(o, kind) for o in a]
    signed = {"s32": "int32_t", "s64": "int64_t"}.get(kind)
    width = 64 if kind.endswith("64") else 32
    if kind == "f32":
        one = {"ex2": "ex2", "lg2": "lg2", "rcp": "rcp", "rsqrt": "rsq", "abs": "fabsf", "neg": "-"}
        if name == "rcp" and "rn" in op:
            return f"(1.0f / {x[0]})"
        if name == "sqrt":
            return f"sqrtf({x[0]})" if "rn" in op else f"sqa({x[0]})"
        if name in one:
            text = f"{one[name]}({x[0]})"
            return f"ftz({one[name]}(ftz({x[0]})))" if flush else text
        if name in ("max", "min"):
            return f"{'mx' if name == 'max' else 'mn'}{'n' if 'NaN' in op else ''}({x[0]}, {x[1]})"
        if name == "copysign":
            return f"copysignf({x[1]}, {x[0]})"
        if name == "div":
            return f"({x[0]} / {x[1]})" if "rn" in op else f"quotient({x[0]}, {x[1]})"
    if name == "add" and "rz" in op:
        return f"toward_zero({x[0]}, {x[1]})"
    if name in ("add", "sub", "mul") and (kind.startswith("f") or ("hi" not in op and "wide" not in op)):
        sign = {"add": "+", "sub": "-", "mul": "*"}[name]
        return f"({x[0]} {sign} {x[1]})"
    if name == "fma" and "rm" in op:
        return f"down(fma((double){x[0]}, (double){x[1]}, (double){x[2]}))"
    if name == "fma":
        return f"{'fmaf' if kind == 'f32' else 'fma'}({', '.join(x)})"
    if name == "mul" and "hi" in op and kind == "u32":
        return f"(uint32_t)((uint64_t){x[0]} * {x[1]} >> 32)"
    if name == "mul" and "wide" in op and kind == "u32":
        return f"((uint64_t){x[0]} * {x[1]})"
    if name == "mad":
        return f"({x[0]} * {x[1]} + {x[2]})"
    if name == "neg":
        return f"(-{x[0]})"
    if name in ("and", "or", "xor"):
        return f"({x[0]} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[name]} {x[1]})"
    if name == "not":
        return f"(!{x[0]})" if kind == "pred" else f"(~{x[0]})"
    if name == "shr":
        return f"SHR(({signed or f'uint{width}_t'}){x[0]}, {x[1]}, {width})"
    if name == "shl":
        return f"SHL({x[0]}, {x[1]}, {width})"
    if name == "selp":
        return f"({_operand(a[2], '')} ? {x[0]} : {x[1]})"
    if name == "mov":
        return x[0]
    if name == "cvt" and "sat" in op:
        return f"sat({x[0]})"
    if name == "cvt" and op[-2:] == ["f32", "f32"] and op[1] in _WHOLE:
        return f"{_WHOLE[op[1]]}({x[0]})"
    if name == "cvt":
        return f"({_C[kind]}){'' if _C[kind][-2:] != '_t' else f'({_C[kind]})'}{_operand(a[0], kind)}"
    raise Untranslated(" ".join(op))


_C = {"u32": "uint32_t", "s32": "int32_t", "u64": "uint64_t", "s64": "int64_t", "f32": "float", "f64": "double", "b32": "uint32_t", "b64": "uint64_t"}  # fmt: skip
_WHOLE = {"rzi": "truncf", "rni": "rintf", "rmi": "floorf", "rpi": "ceilf"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "ls": "<=", "lo": "<", "hi": ">", "hs": ">="}  # fmt: skip


def _condition(op: list[str], a: list[str]) -> str:
    kind, how = op[-1], op[1]
    x, y = (f"({_C[kind]}){_operand(o, kind)}" for o in a)
    if kind[0] != "f":
        return f"{x} {_COMPARE[how]} {y}"
    if how in ("num", "nan"):
        return f"{'!' if how == 'num' else ''}(isnan({x}) || isnan({y}))"
    if how in _COMPARE:
        unordered = f" && !isnan({x}) && !isnan({y})" if how == "ne" else ""
        return f"({x} {_COMPARE[how]} {y}){unordered}"
    return f"(isnan({x}) || isnan({y}) || {x} {_COMPARE[how[:-1]]} {y})"


def to_c(ptx: str) -> str:
    """The body of a kernel that reads one float32 and writes one, as a C function `run`. Raises `Untranslated`."""
    body = ptx[ptx.index("\n{") + 2 : ptx.rindex("}")]
    lines, registers = [], {}
    for line in re.sub(r"//.*", "", body).split(";"):
        text = line.strip()
        while label := re.match(r"(\$\w+):\s*", text):
            lines.append(f"{label[1][1:]}:;")
            text = text[label.end() :]
        if declared := re.match(r"\.reg \.(\w+)\s+%(\w+)<(\d+)>", text):
            registers[declared[2]] = ({"pred": "int", "b64": "uint64_t"}.get(declared[1], "uint32_t"), int(declared[3]))
            continue
        if not text or text.startswith((".", "ld.param", "ret")):
            continue
        guard = ""
        if guarded := re.match(r"@(!?)%(\w+)\s+", text):
            guard, text = f"if ({guarded[1]}{guarded[2]}) ", text[guarded.end() :]
        name, _, rest = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
        op, a = name.strip().split("."), [o.strip() for o in rest.strip().split(",")]
        if op[0] == "bra":
            lines.append(f"{guard}goto {a[0][1:]};")
        elif op[0] == "ld":
            lines.append(f"{a[0][1:]} = B(x);")
        elif op[0] == "st":
            lines.append(f"return F({a[1][1:]});")
        elif op[0] == "setp":
            lines.append(f"{guard}{a[0][1:]} = {_condition(op, a[1:])};")
        else:
            value = _value(op, a[1:])
            kind = op[1 if op[0] != "cvt" else -2] if op[0] == "cvt" else op[-1]
            value = {"f32": f"B({value})", "f64": f"BD({value})"}.get(kind, value)
            lines.append(f"{guard}{a[0][1:]} = {value};")
    declared = [
        f"{kind} {', '.join(f'{name}{i} = 0' for i in range(count))};" for name, (kind, count) in registers.items()
    ]
    return "static float run(float x) {\n" + "\n".join([*declared, *lines]) + "\nreturn 0;\n}\n"


def scan(ptx: str, exact: str, step: int = 1) -> dict:
    """Errors of the kernel over every `step`-th float32; `exact` is a C expression in the double x."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "scan.c", Path(folder) / "scan"
        exact_function = f"static double exact(double x) {{ return {exact}; }}\n"
        source.write_text(_HEAD + to_c(ptx) + exact_function + _MAIN.replace("STEP", str(step)))
        flags = "-O2 -march=native -ffp-contract=off -fno-builtin-fma -w -fopenmp".split()
        subprocess.run(["gcc", *flags, str(source), "-o", str(program), "-lm"], check=True)
        return json.loads(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)


def instructions(ptx: str) -> int:
    """How many instructions of a kernel's PTX always run: those that no jump goes past."""
    body = ptx[ptx.index("\n{") + 2 : ptx.rindex("}")]
    count, until = 0, None
    for line in re.sub(r"//.*", "", body).splitlines():
        text = line.strip()
        if until and text.startswith(f"{until}:"):
            until = None
        if until or not text.endswith(";") or text.startswith("."):
            continue
        count += 1
        if jump := re.match(r"@!?%\w+\s+bra\s+(\$\w+);", text):
            until = jump[1]
    return count
