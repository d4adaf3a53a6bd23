"""Count what a compiled training step launches: run as a program, one JSON object.

torch.compile fuses operations into kernels of its own, and calls libraries for the
rest (convolutions, matrix products). Both are counted in the code that it writes for a
CPU, forward and backward pass together.
"""

import json
import re
import sys

import torch
import torch.nn.functional as F

from fedbnn_core.binary import Sharpness, begin_epoch, begin_round
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.local import prefer_channels_last

SHAPES = {"cnn4": (1, 16, 16)}
OTHERS = (3, 32, 32)
_CALL = re.compile(
    r"^ +(?:\w+ = )?(cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.\w[\w.]*)\("
)


def launches(network: str, *, binary: bool) -> dict[str, int]:
    """Return how often the code of one compiled step calls what."""
    shape = SHAPES.get(network, OTHERS)
    spec = ModelSpec(network, shape, 3, binary=binary, width=8)
    model = prefer_channels_last(build_model(spec, seed=0)).train()
    begin_round(model)
    begin_epoch(model, Sharpness.at(0, 10, 0, 1))
    model.compile()
    from torch._inductor.utils import run_and_get_code

    def step() -> None:
        loss = F.cross_entropy(
            model(torch.randn(4, *shape)), torch.tensor([0, 1, 2, 0])
        )
        loss.backward()

    _, codes = run_and_get_code(step)
    counts: dict[str, int] = {}
    for code in codes:
        body = code[code.index("def call(") :]
        for line in body.splitlines():
            found = _CALL.match(line)
            if found:
                kind = found[1].partition("_")[0]
                counts[kind] = counts.get(kind, 0) + 1
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                k: launches(sys.argv[1], binary=k == "binary")
                for k in ("float", "binary")
            }
        )
    )
