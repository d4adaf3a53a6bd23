"""A further method is one more file: everything else learns of it by itself."""

import json
import os
import subprocess
import sys

from tests.tiny_run import write_data

FIFTH = """
from dataclasses import replace

from fedbnn_core.methods.fedbnn import FedBNN


class Fifth(FedBNN):
    title = "Fifth of All"

    def aggregate(self, replies, broadcast):
        result = super().aggregate(replies, broadcast)
        candidates = {"mixed": result.candidates["mixed"]}
        return replace(result, candidates=candidates, layers={})


METHOD = Fifth
"""

RUN = """
import json, sys
from pathlib import Path

import fedbnn_core.methods

folder = Path(sys.argv[1])
fedbnn_core.methods.__path__.append(str(folder / "methods"))

from fedbnn_core.reporting.report import report_payload
from tests.tiny_run import TinyFederation, tiny_config

settings = {"method": "fifth", "num_server_rounds": 2}
config = tiny_config(folder / "data.npz", folder / "runs", **settings)
federation = TinyFederation(config)
federation.to_end()
run = report_payload([federation.run.directory.path])["runs"][0]
print(json.dumps({key: run[key] for key in ("method_name", "label", "binary")}))

from fedbnn_core.errors import ConfigError

try:
    TinyFederation(tiny_config(folder / "data.npz", folder / "runs", method="fedbat",
                               privacy="local"))
except ConfigError as error:
    print(error)
"""


def test_it_runs_and_is_reported_as_binary(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "fifth.py").write_text(FIFTH)
    write_data(tmp_path / "data.npz", train=64, test=40)
    # Its own process: the valid methods are looked up once, when FedBNN is imported.
    result = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    told, refusal = result.stdout.splitlines()[-2:]
    assert json.loads(told) == {
        "method_name": "Fifth of All",
        "label": "Fifth of All",
        "binary": True,
    }
    # It can be private, so it is offered to who chose a method that cannot.
    assert refusal.endswith("method to one of fedavg, fedbnn, fifth")
