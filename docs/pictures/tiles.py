"""Draws tiles.svg: three operators on two workers, with barriers between operators and without.

    python docs/pictures/tiles.py

A drawing, not a measurement. Both halves come from one schedule: a free worker takes the shallowest tile that is ready. Without
barriers a tile is ready when the tiles that it reads are done, with barriers when the whole operator before it is done.
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

plt.rcParams.update({"svg.hashsalt": "tiles", "font.size": 11, "font.family": "DejaVu Sans"})

WORKERS = 2
COLORS = ("#4477aa", "#ddaa33", "#228833")
IDLE = "#e8e8e8"

# For each operator the time of each of its tiles, and which tiles of the operator before it a tile reads.
OPERATORS = (
    ("A: convolution", (3.0, 3.0, 3.6, 3.0, 3.0), lambda tile: ()),
    ("B: convolution", (2.4, 2.4, 2.4, 3.0, 2.4), lambda tile: {max(tile - 1, 0), tile, min(tile + 1, 4)}),
    ("C: pooling", (2.0, 2.0, 2.0), lambda tile: {min(2 * tile, 4), min(2 * tile + 1, 4)}),
)

Tile = tuple[int, int]


def schedule(has_barriers: bool) -> list[tuple[int, Tile, float, float]]:
    """(worker, (operator, tile), begin, end) of each tile."""
    waiting = [(op, tile) for op, (_, times, _) in enumerate(OPERATORS) for tile in range(len(times))]
    done: dict[Tile, float] = {}
    free = [0.0] * WORKERS
    found = []

    def ready_at(op: int, tile: int) -> float:
        if op == 0:
            return 0.0
        before = range(len(OPERATORS[op - 1][1])) if has_barriers else OPERATORS[op][2](tile)
        return max(done.get((op - 1, parent), float("inf")) for parent in before)

    while waiting:
        worker = min(range(WORKERS), key=free.__getitem__)
        # The first to be ready, but of those that are ready when the worker is free the shallowest.
        begin, op, tile = min((max(free[worker], ready_at(*item)), *item) for item in waiting)
        end = begin + OPERATORS[op][1][tile]
        waiting.remove((op, tile))
        done[op, tile] = free[worker] = end
        found.append((worker, (op, tile), begin, end))
    return found


def draw(axes: Axes, title: str, has_barriers: bool, width: float) -> float:
    """One half of the picture; the time at which the last tile ends."""
    tiles = schedule(has_barriers)
    finish = max(end for *_, end in tiles)
    for worker in range(WORKERS):
        axes.barh(worker, finish, color=IDLE, height=0.8, zorder=1)
    for worker, (op, tile), begin, end in tiles:
        axes.barh(worker, end - begin, left=begin, color=COLORS[op], edgecolor="white", linewidth=2, height=0.8, zorder=2)
        axes.text((begin + end) / 2, worker, f"{'ABC'[op]}{tile + 1}", color="white", ha="center", va="center", weight="bold")
    if has_barriers:
        for op in range(len(OPERATORS) - 1):
            time = max(end for _, (other, _), _, end in tiles if other == op)
            axes.plot([time, time], [-0.55, WORKERS - 0.45], color="#bb3333", linewidth=2.5, zorder=3)
            axes.text(time, -0.6, "barrier", color="#bb3333", ha="center", va="bottom", fontsize=10)
    axes.plot([finish, finish], [-0.55, WORKERS - 0.45], color="#333333", linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    axes.text(finish + 0.2, (WORKERS - 1) / 2, "done", va="center", color="#333333")
    axes.set_title(title, loc="left", fontsize=12, weight="bold", pad=14)
    axes.set_xlim(0, width)
    axes.set_ylim(WORKERS - 0.4, -0.6)
    axes.set_yticks(range(WORKERS), [f"worker {worker + 1}" for worker in range(WORKERS)])
    axes.set_xticks([])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
    return finish


def main() -> None:
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 4.4), facecolor="white")
    width = max(end for *_, end in schedule(has_barriers=True)) + 1.6
    draw(above, "A runtime with barriers: an operator waits for all of the one before it", True, width)
    draw(below, "aspen_jax: a tile waits only for the tiles that it reads", False, width)
    below.annotate("", (width, 1.75), (0, 1.75), arrowprops={"arrowstyle": "->", "color": "#333333"}, annotation_clip=False)
    below.text(width, 1.85, "time", ha="right", va="top", color="#333333")
    named = [*zip(COLORS, (name for name, *_ in OPERATORS), strict=True), (IDLE, "idle")]
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color, _ in named]
    figure.legend(handles, [name for _, name in named], loc="lower left", ncols=4, frameon=False, bbox_to_anchor=(0.09, 0.0))
    figure.subplots_adjust(left=0.1, right=0.98, top=0.91, bottom=0.17, hspace=0.6)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
