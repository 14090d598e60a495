"""Tests per second: `reward=coding_tests`, isolation on, against verl's `prime_code` scorer, which has none.

    python -m bench.coding_tests [--quick]

Both score the same right programs (so that both run every test), in one process, as many at a time as there are CPUs,
in turns; the ratio is the median over the rounds. The mix of tests per problem is ours: 1 to 50, mean 14. verl runs
all tests of a program in one process and pays about 0.1 s per program for a manager; we pay one fork per test. That
overhead weighs less the more tests a problem has, hence the table by that number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BAR = 2.0
MIX = (1, 3, 5, 8, 10, 10, 15, 20, 20, 50)
"""Tests per problem."""

PROGRAMS = {
    "sum": ("print(sum(map(int, input().split())))", lambda i: (f"{i} {2 * i}\n", f"{3 * i}\n")),
    "sort": (
        "import sys\nn, *values = map(int, sys.stdin.read().split())\nprint(*sorted(values[:n]))",
        lambda i: (f"{i + 3}\n{' '.join(str(i + 3 - k) for k in range(i + 3))}\n", " ".join(map(str, range(1, i + 4)))),
    ),
    "primes": (
        "n = int(input())\nsieve = [True] * (n + 1)\nfor p in range(2, n + 1):\n"
        "    if sieve[p]:\n        for q in range(p * p, n + 1, p):\n            sieve[q] = False\n"
        "print(sum(sieve[2:]))",
        lambda i: (
            f"{1000 + i}\n",
            f"{sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, 1001 + i))}\n",
        ),
    ),
}


def problems(mix) -> list[tuple[str, dict]]:
    found = []
    for index, count in enumerate(mix):
        code, test = list(PROGRAMS.values())[index % len(PROGRAMS)]
        pairs = [test(i) for i in range(count)]
        tests = {"inputs": [stdin for stdin, _ in pairs], "outputs": [stdout for _, stdout in pairs]}
        found.append((f"Here is my program.\n\n```python\n{code}\n```\n", tests))
    return found


def measure_peer(work) -> float:
    """Seconds. As verl's reward loop calls it: one thread per score in flight."""
    from verl.utils.reward_score.prime_code import compute_score

    def score(item):
        response, tests = item
        return compute_score(response, {name: [*values] for name, values in tests.items()}, continuous=True)[0]

    began = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        results = list(threads.map(score, work))
    took = time.perf_counter() - began
    _all_right("verl prime_code", results)
    return took


async def measure_ours(reward, work) -> float:
    from rufus_plugins import Task, Trajectory

    trajectories = [
        Trajectory(Task(str(i), "bench", [], tests), messages=[{"role": "assistant", "content": response}])
        for i, (response, tests) in enumerate(work)
    ]
    began = time.perf_counter()
    scores = await asyncio.gather(*[reward(trajectory) for trajectory in trajectories])
    took = time.perf_counter() - began
    _all_right("coding_tests", [score.value for score in scores])
    return took


def _all_right(name: str, results) -> None:
    if not all(result == 1 for result in results):
        sys.exit(f"{name} does not pass all of these right programs: {results}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three rounds, half the mix")
    quick = parser.parse_args().quick
    from rufus_plugins.rewards.coding_tests import CodingTests
    from rufus_plugins.rollouts.sandboxes.zygote import available

    backend, why = available()
    print(why)
    work = problems(MIX[::2] if quick else MIX)
    count = sum(len(tests["inputs"]) for _, tests in work)
    reward = CodingTests(backend=backend, max_tests=50, timeout_s=30)
    asyncio.run(measure_ours(reward, work[:2]))  # both warm
    measure_peer(work[:1])
    rounds = []
    for index in range(3 if quick else 5):
        ours, peer = count / asyncio.run(measure_ours(reward, work)), count / measure_peer(work)
        rounds.append((ours, peer))
        print(f"round {index + 1}: ours {ours:6.0f} tests/s   verl prime_code {peer:6.0f} tests/s   {ours / peer:.2f}x")
    if not quick:
        for size in (1, 10, 50):
            some = problems([size] * 6)
            ours, peer = 6 * size / asyncio.run(measure_ours(reward, some)), 6 * size / measure_peer(some)
            print(f"{size:3} tests a problem: ours {ours:6.0f}   verl {peer:6.0f}   {ours / peer:.2f}x")
    ratio = statistics.median(ours / peer for ours, peer in rounds)
    result = {
        "bench": "coding_tests",
        "ours": round(statistics.median(ours for ours, _ in rounds), 1),
        "peer": round(statistics.median(peer for _, peer in rounds), 1),
        "ratio": round(ratio, 2),
        "bar": BAR,
        "ok": ratio >= BAR,
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
