"""Math answers per second on one core: `math_answer`, jailed and with a deadline, against bare math-verify.

    python -m bench.math_answer [--quick]

Bare math-verify parses and compares in this process, without a jail and without a limit on time. Both sides are held
to the same single core, and see the same responses: half plain numbers and choices, half expressions, intervals, sets,
tuples, equations and matrices, 40 % of them wrong (the mix is ours). Bars: at least 0.9 of math-verify's rate in
batches of 32, at least 0.7 with one answer at a time, and a poisonous answer in a batch costs its own deadline only.
The mix without plain numbers is shown too: there nothing is settled outside the jail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import time

BAR_BATCH, BAR_SINGLY = 0.9, 0.7
DEADLINE_S = 2.0
POISON = (
    r"9**9**9**9",
    r"\int_0^{\infty} \frac{\sin(x^{3})}{x^{7}+\cos(x)} dx",
    r"((((x+y+z)^{200}+1)^{200}+1)^{200}+\pi)",
)


def plain(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(2, 999), rng.randint(2, 99)
    return rng.choice(
        [
            (f"{a}", f"{a}"), (f"{a}", f"{a}"), (f"{a * 1000}", f"{a},000"), (rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
            (f"{a / 8}", rf"\frac{{{a}}}{{8}}"), (f"-{a}", f"-{a}"), ("B", r"\textbf{(B)}"),
        ]
    )  # fmt: skip


def structured(rng: random.Random) -> tuple[str, str]:
    a, b, c = rng.randint(2, 40), rng.randint(2, 40), rng.randint(2, 9)
    return rng.choice(
        [
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
            (rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{b}"),
            (rf"x^2+{a + b}x+{a * b}", rf"(x+{a})(x+{b})"),
            (rf"({-a},{b}]", rf"\left({-a}, {b}\right]"),
            (rf"({a},\frac{{{b}}}{{{c}}})", rf"({a}, {b}/{c})"),
            (rf"\{{{a},{a + b}\}}", rf"\{{{a + b},{a}\}}"),
            (rf"y={a}x+{b}", rf"y = {b} + {a}x"),
            (rf"\begin{{pmatrix}}{a}&{b}\\{c}&1\end{{pmatrix}}", rf"\begin{{bmatrix}}{a}&{b}\\{c}&1\end{{bmatrix}}"),
            (rf"{a}\ln {c}", rf"\ln {c ** min(a, 12)}" if a <= 12 else rf"\ln({c}^{{{a}}})"),
            (rf"{a}+{b}i", rf"{b}i+{a}"),
            (rf"x\ge {a}", rf"[{a},\infty)"),
            (rf"\frac{{{a}-\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{a}}}{{{c}}}-\frac{{\sqrt{{{b}}}}}{{{c}}}"),
        ]
    )


def items(count: int, share_plain: float, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        make = plain if rng.random() < share_plain else structured
        gold, answer = make(rng)
        if rng.random() < 0.4:
            answer = make(rng)[1]  # most likely another value
        found.append(
            (gold, f"We compute step by step and obtain the value. The final answer is $\\boxed{{{answer}}}$.")
        )
    return found


def peer_rate(given: list[tuple[str, str]]) -> float:
    from math_verify import parse, verify

    began = time.perf_counter()
    for gold, response in given:
        verify(
            parse(f"\\boxed{{{gold}}}", parsing_timeout=None),
            parse(response, parsing_timeout=None),
            timeout_seconds=None,
        )
    return len(given) / (time.perf_counter() - began)


def trajectory(gold: str, response: str):
    from rufus_plugins.types import Task, Trajectory

    return Trajectory(Task("", "math", [], gold), messages=[{"role": "assistant", "content": response}])


async def our_rate(reward, given: list[tuple[str, str]], size: int) -> float:
    made = [trajectory(*item) for item in given]
    began = time.perf_counter()
    for start in range(0, len(made), size):
        await asyncio.gather(*(reward(t) for t in made[start : start + size]))
    return len(given) / (time.perf_counter() - began)


async def poison_costs(reward) -> list[float]:
    """Extra seconds that each poisonous answer costs a batch of 31 right ones."""
    right = [(rf"{k}\sqrt{{2}}", rf"\boxed{{\sqrt{{{2 * k * k}}}}}") for k in range(2, 33)]
    costs = []
    for poison in POISON:
        batch = [trajectory(*item) for item in right]
        began = time.perf_counter()
        await asyncio.gather(*(reward(t) for t in batch))
        usual = time.perf_counter() - began
        batch.insert(10, trajectory(r"\sqrt{3}", f"\\boxed{{{poison}}}"))
        began = time.perf_counter()
        scores = await asyncio.gather(*(reward(t) for t in batch))
        costs.append(time.perf_counter() - began - usual)
        if [s.value for s in scores] != [1.0] * 10 + [0.0] + [1.0] * 21:
            raise SystemExit(f"a neighbour of {poison!r} was scored wrong")
    return costs


async def measure(count: int, rounds: int) -> int:
    from rufus_plugins.rewards.math_answer import MathAnswer

    reward = MathAnswer(timeout_s=DEADLINE_S, workers=1)
    best: dict[str, float] = {}
    for round_number in range(rounds):
        for name, share in (("mixed", 0.5), ("structured", 0.0)):
            given = items(count, share, round_number % 2)
            await our_rate(reward, given[:32], 32)  # both sides warm
            peer_rate(given[:32])
            rates = {
                f"{name} peer": peer_rate(given),
                f"{name} batch": await our_rate(reward, given, 32),
                f"{name} singly": await our_rate(reward, given, 1),
            }
            for key, rate in rates.items():
                best[key] = max(best.get(key, 0.0), rate)
    costs = await poison_costs(reward)
    for name in ("mixed", "structured"):
        peer = best[f"{name} peer"]
        for how in ("batch", "singly"):
            print(f"{name:>10} {how:>6}: ours {best[f'{name} {how}']:7.1f}/s, math-verify {peer:7.1f}/s, "
                  f"ratio {best[f'{name} {how}'] / peer:.2f}")  # fmt: skip
    print("poison costs (s, deadline 2 each): " + ", ".join(f"{c:.2f}" for c in costs))
    peer = best["mixed peer"]
    ratio, singly = best["mixed batch"] / peer, best["mixed singly"] / peer
    hard = {how: best[f"structured {how}"] / best["structured peer"] for how in ("batch", "singly")}
    slack_s = 2.0  # asking whether the gold alone can be compared, and a new process
    ok = ratio >= BAR_BATCH and singly >= BAR_SINGLY and max(costs) <= DEADLINE_S + slack_s
    print(
        json.dumps(
            {
                "bench": "math_answer", "ours": round(best["mixed batch"], 1), "peer": round(peer, 1),
                "ratio": round(ratio, 3), "bar": BAR_BATCH, "ok": ok, "singly_ratio": round(singly, 3),
                "singly_bar": BAR_SINGLY, "structured_ratio": round(hard["batch"], 3),
                "structured_singly_ratio": round(hard["singly"], 3),
                "poison_s": [round(c, 2) for c in costs],
            }
        )
    )  # fmt: skip
    return 0 if ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer answers")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)  # math-verify warns about every call without its own timeout
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the jails inherit it
    return asyncio.run(measure(*((128, 1) if quick else (640, 4))))


if __name__ == "__main__":
    sys.exit(main())
