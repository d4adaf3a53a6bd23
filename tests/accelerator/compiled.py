"""Count what a compiled training step launches: run as a program, one JSON object.

torch.compile fuses operations into kernels of its own, and calls libraries for the
rest (convolutions, matrix products). Both are counted in the code that it writes,
forward and backward pass together. The code is not built, which would take minutes: the
passes themselves run operation by operation.
"""

import copy
import functools
import json
import re
import sys
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import torch
import torch._inductor.config
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering

from fedbnn_core.binary import Sharpness, begin_epoch, begin_round, devices
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.local import prefer_channels_last

SHAPES = {"cnn4": (1, 16, 16)}
OTHERS = (3, 32, 32)
_CALL = re.compile(
    r"^ +(?:\w+ = )?(cpp_fused\w*|extern_kernels\.\w+|torch\.ops\.\w[\w.]*)\("
)


def launches(network: str, *, binary: bool) -> Counter[str]:
    """Return how often the code of one compiled step calls what."""
    shape = SHAPES.get(network, OTHERS)
    spec = ModelSpec(network, shape, 3, binary=binary, width=8)
    model = prefer_channels_last(build_model(spec, seed=0)).train()
    begin_round(model)
    begin_epoch(model, Sharpness.at(0, 10, 0, 1))
    counts: Counter[str] = Counter()

    def read(lowering: GraphLowering) -> SimpleNamespace:
        code = lowering.codegen()[0].value
        for line in code[code.index("def call(") :].splitlines():
            found = _CALL.match(line)
            if found:
                counts[found[1].partition("_")[0]] += 1
        return SimpleNamespace(call=None)

    def count(graph, inputs, **settings):
        eager = copy.deepcopy(graph)
        with mock.patch.object(GraphLowering, "compile_to_module", read):
            compile_fx_inner(graph, inputs, **settings)
        return make_boxed_func(eager.forward)

    model.compile(
        backend=functools.partial(compile_fx, inner_compile=count), fullgraph=True
    )
    labels = torch.tensor([0, 1, 2, 0])
    F.cross_entropy(model(torch.randn(4, *shape)), labels).backward()
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.cpp.vec_isa_ok = True  # asks no compiler
    if "together" in sys.argv:
        devices.LAYER_BY_LAYER = ()
    print(
        json.dumps(
            {
                kind: launches(sys.argv[1], binary=kind == "binary")
                for kind in ("float", "binary")
            }
        )
    )
