"""The one log line of a round."""

from collections.abc import Sequence
from typing import Any

from fedbnn_core.runs.progress import seconds_left

__all__ = ["round_line"]


def round_line(lines: Sequence[dict[str, Any]]) -> str:
    """Return what a person wants to know after a round.

    ``lines`` are the metrics of this round and some before it, the newest last; they
    tell how long the rest will take.
    """
    line = lines[-1]
    done, total = line["round"], line["num_rounds"]
    left = seconds_left(lines) or 0.0
    width = len(str(total))
    parts = [f"round {done:>{width}}/{total}"]
    if "val_accuracy" in line:
        parts.append(f"val {100 * line['val_accuracy']:5.2f} %")
        parts.append(
            f"(best {100 * line['best_val_accuracy']:.2f} % in round "
            f"{line['best_round']})"
        )
    if line["train_loss"] is not None:
        parts.append(f"loss {line['train_loss']:.3f}")
    if "epsilon" in line:
        parts.append(f"epsilon {line['epsilon']:.2f}")
    if line["rejected"]:
        parts.append(f"{len(line['rejected'])} replies rejected")
    parts.append(f"{sum(line['seconds'].values()):.1f} s")
    parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
    return "  ".join(parts)
