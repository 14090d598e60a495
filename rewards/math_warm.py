"""Imported once per jailed worker, before anything untrusted: loads the parser and fills its caches.

The grammar's tables are built on first use and take longer than a hundred comparisons; each fork inherits them.
"""

from __future__ import annotations

from rufus_plugins.rewards.math_compare import compare

_TYPICAL = (
    (r"\frac{\sqrt{3}}{2}+1", r"\frac{2+\sqrt{3}}{2}"),
    (r"2\ln 3-\log_{2} 5", r"\ln 9-\log_2 5"),
    (r"(x-1)(x+1)\sin x", r"(x^2-1)\sin x"),
    (r"\frac{\pi}{6}", r"30^\circ"),
    (r"[1,\sqrt{2})\cup(3,\infty)", r"x>3 \text{ or } 1\le x<\sqrt{2}"),
    (r"x^2+y^{2}=1", r"2x^2+2y^2=2"),
    (
        r"\begin{pmatrix}\sqrt{2}&1\\0&\frac{1}{3}\end{pmatrix}",
        r"\begin{pmatrix}\sqrt2&1\\0&0.\overline{3}\end{pmatrix}",
    ),
    (r"a_{1}+b^{n}-|c|", r"b^n+a_1-|c|"),
    (r"\binom{5}{2}+\sqrt[3]{9}", r"10+9^{1/3}"),
    (r"\sum_{k=1}^{10} k^2", r"386"),
    (r"2+3i", r"3i+2"),
    (r"5\sqrt{3}\text{ cm}^2", r"5 \sqrt 3"),
    (r"e^{2x}\cos(\theta)", r"e^{2x}\cos\theta"),
    (r"\frac{7}{2}\pi+3", r"3\frac{1}{2}\pi+3"),
    (r"-\frac{3\sqrt{5}-2}{4}", r"\frac{2-3\sqrt{5}}{4}"),
    (r"\frac{x^{2}-3x+2}{x-1}", r"x-2"),
    (r"y=2x+1", r"y = 1 + 2x"),
    (r"\tan\frac{\pi}{8}", r"\sqrt{2}-1"),
    (r"2^{10}-n!", r"1024 - n!"),
    (r"x=1,\; x=\sqrt{2}", r"\sqrt{2}, 1"),
    (r"(2,-\frac{\pi}{3})", r"(2, -\pi/3)"),
    (r"\{1,\sqrt{3}\}", r"\{\sqrt{3}, 1\}"),
    (r"\pm\sqrt{7}", r"-\sqrt{7}, \sqrt{7}"),
    (r"\arcsin\frac{1}{3}", r"\sin^{-1}\left(\frac{1}{3}\right)"),
    (r"\frac{\ln 2}{\ln 3}", r"\log_3 2"),
    (r"1.4142136", r"\sqrt{2}"),
    (r"e^{-\lambda t}", r"\frac{1}{e^{\lambda t}}"),
    (r"\sqrt{-4}", r"2i"),
    (r"(a+b)^3", r"a^3+3a^2b+3ab^2+b^3"),
    (r"\int_0^1 x\,dx", r"\frac{1}{3}"),
)

for _gold, _answer in _TYPICAL:
    compare({"gold": _gold, "answer": _answer})
