"""Run benchmarks: all of them, or those named (`python -m benchmarks data`)."""

import importlib
import pkgutil
import sys

import benchmarks


def main(wanted: list[str]) -> None:
    """Run the `main` of each wanted module of this package."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    names = [name for name in names if not name.startswith("_")]
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        sys.exit(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(names)}")
    for name in wanted or names:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
