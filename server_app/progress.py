"""The one log line of a round."""

from typing import Any

__all__ = ["round_line"]


def round_line(line: dict[str, Any]) -> str:
    """Return what a person wants to know after a round, from its metrics line."""
    done, total = line["round"], line["num_rounds"]
    left = line["elapsed_seconds"] / done * (total - done)
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
