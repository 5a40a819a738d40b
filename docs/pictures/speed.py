"""Draws speed.svg: how long a call takes by jax.jit and by the fastest other runtime, aspen_jax's call being 1.

    python docs/pictures/speed.py

The figures are those of docs/results/zen4.md, measured on 25 November 2026: two cores of an AMD EPYC (Zen 4) in a shared virtual
machine, float32, batch 1, two workers, Python 3.11, jax 0.10.2, ONNX Runtime 1.32.0, OpenVINO 2026.4.1. Quotients are medians
of the rounds' quotients.
"""

from pathlib import Path

from matplotlib import pyplot as plt

plt.rcParams.update({"svg.hashsalt": "speed", "font.size": 11, "font.family": "DejaVu Sans"})

# Network, milliseconds of aspen's fastest call, jax.jit over aspen, fastest peer over aspen, and which peer that was.
MEASURED = (
    ("VGG-16", 70.1, 3.03, 2.16, "OpenVINO"),
    ("ResNet-50", 30.7, 2.65, 1.21, "OpenVINO"),
    ("MobileNetV2", 3.87, 18.77, 1.01, "ONNX Runtime"),
    ("GPT-2, 1024 tokens*", 1240, 1.87, 1.06, "OpenVINO"),
    ("BERT-base, 128 tokens*", 111, 1.27, 1.04, "OpenVINO"),
    ("ViT-B/16*", 154, 1.26, 1.01, "OpenVINO"),
    ("31 networks, geometric mean", None, 3.11, 1.47, None),
)
COLORS = {"jax.jit": "#bbbbbb", "fastest other runtime": "#ddaa33", "aspen_jax": "#4477aa"}
HEIGHT = 0.27
WIDTH = 4.0  # longer bars are cut, and say so


def main() -> None:
    figure, axes = plt.subplots(figsize=(9, 6), facecolor="white")
    for row, (_, milliseconds, jit, peer, name) in enumerate(MEASURED):
        own = "1" if milliseconds is None else f"1  ({milliseconds:g} ms)"
        bars = ((jit, f"{jit:.2f}"), (peer, f"{peer:.2f}" + (f"  ({name})" if name else "")), (1.0, own))
        for place, ((times, text), color) in enumerate(zip(bars, COLORS.values(), strict=True)):
            y = row + (place - 1) * HEIGHT
            shown = min(times, WIDTH)
            axes.barh(y, shown, height=HEIGHT, color=color, edgecolor="white")
            axes.text(shown + 0.04, y, text, va="center", fontsize=9, color="#333333")
            if shown < times:  # two white strokes across the bar
                for x in (WIDTH - 0.2, WIDTH - 0.12):
                    axes.plot([x - 0.04, x + 0.04], [y + HEIGHT / 2, y - HEIGHT / 2], color="white", linewidth=2.5)
    axes.axvline(1, color="#4477aa", linewidth=1, linestyle=(0, (4, 3)))
    axes.axhline(len(MEASURED) - 1.5, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(MEASURED)), [network for network, *_ in MEASURED])
    axes.set_ylim(len(MEASURED) - 0.45, -0.55)
    axes.set_xlim(0, WIDTH + 0.45)
    axes.set_xticks(range(int(WIDTH) + 1))
    axes.set_xlabel("time of a call, aspen_jax = 1 (shorter is faster)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", left=False)
    title = "Two cores of an AMD EPYC (Zen 4), float32, batch 1, 25 November 2026"
    figure.suptitle(title, x=0.02, ha="left", fontsize=12, weight="bold")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    axes.legend(handles, COLORS, loc="center right", bbox_to_anchor=(1.0, 0.3), frameon=False)
    note = "* before transformers gave up Strassen's algorithm on 26 November, which had saved them 6 to 10% of the time"
    figure.text(0.02, 0.015, note, fontsize=9, color="#333333")
    figure.subplots_adjust(left=0.27, right=0.97, top=0.93, bottom=0.14)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
