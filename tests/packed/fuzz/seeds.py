"""Write small valid files for the fuzzer to start from."""

import sys
from pathlib import Path

import numpy as np

from fedbnn_core.packed.encode import encode
from tests.packed.graphs import Conv, conv_graph, everything


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    graphs = [everything(channels, rng) for channels in (1, 3)]
    for case in (
        Conv(1, 1, 1, 1, 1),
        Conv(4, 4, 3, 2, 3, padding=1),
        Conv(5, 3, 17, 3, 2, stride=2),
        Conv(4, 4, 9, 9, 3, padding=1, depthwise=True),
    ):
        graphs.append(conv_graph(case, rng)[0])
    for number, graph in enumerate(graphs):
        for kernel in range(3):
            seed = bytes([kernel]) + encode(graph)
            (folder / f"{number}-{kernel}").write_bytes(seed)


if __name__ == "__main__":
    main()
