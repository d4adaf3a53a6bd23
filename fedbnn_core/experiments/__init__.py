"""Recipes of the paper's tables: read them, run them, print them beside the paper."""

from fedbnn_core.experiments.curves import draw_curves, finished_runs
from fedbnn_core.experiments.published import publish
from fedbnn_core.experiments.recipes import (
    Published,
    Recipe,
    Row,
    Scale,
    load_recipe,
    recipe_names,
)
from fedbnn_core.experiments.runs import PlannedRun, plan
from fedbnn_core.experiments.table import ResultRow, as_csv, as_markdown, collect

__all__ = [
    "PlannedRun",
    "Published",
    "Recipe",
    "ResultRow",
    "Row",
    "Scale",
    "as_csv",
    "as_markdown",
    "collect",
    "draw_curves",
    "finished_runs",
    "load_recipe",
    "plan",
    "publish",
    "recipe_names",
]
