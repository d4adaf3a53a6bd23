"""What `fedbnn run` shows while a run goes on.

In a terminal a live view, drawn from the run directory's own files; elsewhere one
plain line a round, as Flower's log brings them.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fedbnn_core.runs.log import directory_in, plain_line, round_in, stopped_in
from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.progress import RunFollower, seconds_left

__all__ = ["RunView", "live_panel", "sparkline"]

_WORTH_SHOWING = ("WARNING", "ERROR", "clients are connected", "Clients train on")
# Flower's own remarks that say nothing about this run, or only that it failed: the
# command ends by telling why.
_NOISE = (
    "default simulated SuperNodes changed",
    "Simulation raised an exception",
    "Exit Code: 700",
    "Manually terminating ClientAppActor",
)
_FINISHING = "All rounds are done: scoring on the test half, packing, ending Flower"
_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 40
_TAIL = 40


class RunView:
    """Show a run: `line` takes Flower's log line by line.

    Parameters
    ----------
    console : where to draw; a terminal gets the live view.
    verbose : print every line instead.

    Attributes
    ----------
    directory : Path or None
        The run directory, once the log has named it.
    cause : str or None
        Why the run ended early, once the log has told it.
    tail : list of str
        The newest lines, to be shown if the run fails.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self.directory: Path | None = None
        self.cause: str | None = None
        self.tail: list[str] = []
        self._console = console
        self._verbose = verbose
        self._follower: RunFollower | None = None
        self._total = 0
        self._spinner = Spinner("dots", "Flower is starting the clients ...")
        self._live: Live | None = None
        if console.is_terminal and not verbose:
            self._live = Live(
                get_renderable=self._panel, console=console, refresh_per_second=4
            )

    def __enter__(self) -> "RunView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last view standing; what is printed next comes below it."""
        if self._live is not None:
            self._live.stop()

    def line(self, raw: str) -> None:
        """Take a line of Flower's log and print it if it matters."""
        text = plain_line(raw)
        self.tail.append(text)
        del self.tail[:-_TAIL]
        self.directory = directory_in(raw) or self.directory
        self.cause = stopped_in(raw) or self.cause
        news = round_in(raw)
        if self._verbose:
            self._print(text)
        elif self.cause is not None or any(word in text for word in _NOISE):
            return  # The command ends with the cause, once.
        elif any(word in text for word in _WORTH_SHOWING) or (
            self._live is None and news
        ):
            self._print(text)
        if news is not None and news.round == news.num_rounds and self._live is None:
            self._print(f"{_FINISHING} ...")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _panel(self) -> RenderableType:
        if self.directory is None:
            return self._spinner
        if self._follower is None:
            from fedbnn_core.runs.directory import RunDirectory

            self._follower = RunFollower(self.directory)
            config = RunDirectory(self.directory).read_json("config.json")["config"]
            self._total = int(config["num-server-rounds"])
        self._follower.poll()
        now = self._follower.current_round()
        return live_panel(self._follower.rounds, now, self._total)


def live_panel(
    rounds: Sequence[RoundMetrics], now: dict[str, int] | None, total: int
) -> RenderableType:
    """Return the live view of a run.

    Parameters
    ----------
    rounds : the metrics so far.
    now : the round under way, as in ``progress.json``.
    total : rounds of the whole run.
    """
    done = rounds[-1].round if rounds else 0
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    left = seconds_left(rounds)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        f"{done} of {total} done",
        ProgressBar(total=total, completed=done, width=30),
        f"{_clock(left)} left" if left else "",
    )
    table.add_row("Rounds", head)
    if done >= total:
        table.add_row("Finishing", _FINISHING)
    elif now is not None:
        state = f"{now['done']} of {now['clients']} clients done"
        if now["done"] >= now["clients"]:
            state += ", aggregating and evaluating"
        table.add_row(f"Round {now['round']}", state)
    scored = {m.round: m.val_accuracy for m in rounds if m.val_accuracy is not None}
    scores = list(scored.values())
    if scores:
        where = max(scored, key=scored.__getitem__)
        best = scored[where]
        table.add_row(
            "Accuracy",
            Text.assemble(
                f"now {100 * scores[-1]:.2f} %   best ",
                (f"{100 * best:.2f} %", "bold green"),
                f" in round {where}   ",
                (sparkline(scores, _SPARK_WIDTH), "cyan"),
            ),
        )
    if rounds:
        up = sum(metrics.bytes_up for metrics in rounds)
        down = sum(metrics.bytes_down for metrics in rounds)
        table.add_row("Traffic", f"{up / 1e6:,.1f} MB up   {down / 1e6:,.1f} MB down")
        rejected = sum(len(metrics.rejected) for metrics in rounds)
        rejected += now["rejected"] if now else 0
        style = "yellow" if rejected else ""
        table.add_row("Rejected replies", Text(str(rejected), style=style))
    return Group(table)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the course of the values as at most ``width`` bars.

    Of more values than bars, each bar shows the mean of its share.
    """
    count = min(len(values), width)
    means = []
    for bar in range(count):
        start = bar * len(values) // count
        share = values[start : (bar + 1) * len(values) // count]
        means.append(sum(share) / len(share))
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
