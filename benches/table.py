"""Prints what benches/run measured as Markdown: medians, and ratios of medians.

    table.py MICROSHARDS TOOK PARTS
"""

import collections
import math
import statistics
import sys


class Took:
    """Medians of one contestant."""

    def __init__(self, rounds):
        self.wall_s = statistics.median(wall for wall, _, _, _ in rounds)
        self.cpu_s = statistics.median(user + system for _, user, system, _ in rounds)
        self.peak_mib = statistics.median(kb for _, _, _, kb in rounds) / 1024


def main():
    microshards, took_path, parts_path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    rounds = collections.defaultdict(list)
    with open(took_path) as lines:
        for line in lines:
            name, *numbers = line.rstrip("\n").split("\t")
            rounds[name].append([float(number) for number in numbers])
    took = {name: Took(rounds) for name, rounds in rounds.items()}
    with open(parts_path) as lines:
        parts_us = statistics.median(float(line) for line in lines)
    print_medians(took, microshards)
    print_ratios(took, parts_us * microshards / 1e6)


def print_medians(took, microshards):
    print("\n| | wall | microshards/s | CPU | CPU a microshard | peak memory of one process |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, it in took.items():
        print(f"| {name} | {it.wall_s:.2f} s | {microshards / it.wall_s:,.0f} | {it.cpu_s:.2f} s | "
              f"{it.cpu_s / microshards * 1e6:.0f} us | {it.peak_mib:.0f} MiB |")


def print_ratios(took, parts_s):
    """Each of ours against the fastest of the peer's settings."""
    print("\n| | against | wall | CPU |")
    print("|---|---|---:|---:|")
    for ours, peer, ends in [
        ("run", "Python compactor", ""),
        ("run, splicing", "Python compactor", ""),
        ("run", "DuckDB", "from HTTP"),
        ("run, from local files", "DuckDB", "from local files"),
        ("our fetchers, dropped after SHA-256", "s5cmd run", ""),
        ("our fetchers, dropped after SHA-256", "s5cmd cp", ""),
        ("our fetchers, to files", "s5cmd run", ""),
        ("our fetchers, to files", "s5cmd cp", ""),
    ]:
        if ours in took:
            names = [name for name in took if name.startswith(peer) and name.endswith(ends)]
            fastest = min(names, key=lambda name: took[name].wall_s)
            wall, cpu = took[fastest].wall_s / took[ours].wall_s, took[fastest].cpu_s / took[ours].cpu_s
            print(f"| {ours} | {fastest} | {cut(wall)} x | {cut(cpu)} x |")
    print(f"\nThe parts of the work, one after the other on one thread, take {parts_s:.2f} s of CPU; "
          f"`run` takes {took['run'].cpu_s / parts_s:.3f} times that.")


def cut(ratio):
    """Never more than it is."""
    return f"{math.floor(ratio * 100) / 100:.2f}"


if __name__ == "__main__":
    main()
