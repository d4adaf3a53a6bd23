"""The report of a long, deep run: size, time to make it, time to open it.

Run with ``python -m benchmarks report``; needs chromium and chromedriver
(``make system-deps``) and selenium.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path

ROUNDS, LAYERS, CLIENTS = 1500, 24, 100
OPENINGS = 7

# From the start of navigation until all charts are drawn and a frame is on screen.
DRAWN = """
const done = arguments[arguments.length - 1];
const look = () => {
  const lines = document.querySelectorAll('[data-chart="cos-phi"] polyline');
  if (lines.length < arguments[0]) return requestAnimationFrame(look);
  const painted = () => done(performance.now());
  return requestAnimationFrame(() => requestAnimationFrame(painted));
};
look();
"""


def main() -> None:
    """Print the figures."""
    from fedbnn_core.reporting.report import write_report
    from tests.reporting.report.chromium import start_browser
    from tests.reporting.report.runs import write_run

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = write_run(
            Path(folder) / "run", rounds=ROUNDS, layers=LAYERS, clients=CLIENTS
        )
        started = time.perf_counter()
        page = write_report([run])
        made = time.perf_counter() - started
        print(f"report of {ROUNDS} rounds and {LAYERS} layers:")
        print(f"  size {page.stat().st_size / 1e6:.2f} MB, made in {made:.1f} s")
        if not shutil.which("chromium") or not shutil.which("chromedriver"):
            print("  not opened: no chromium here, run make system-deps")
            return
        driver = start_browser(Path(folder) / "profile")
        try:
            seconds = []
            for _ in range(OPENINGS):
                driver.get(page.as_uri())
                seconds.append(driver.execute_async_script(DRAWN, LAYERS) / 1000)
        finally:
            driver.quit()
        print(
            f"  opened and drawn in {statistics.median(seconds):.2f} s "
            f"(median of {OPENINGS}; {min(seconds):.2f} to {max(seconds):.2f} s)"
        )


if __name__ == "__main__":
    main()
