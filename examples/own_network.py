"""Train a 1-bit network of your own on one machine, pack it, and run it.

    python examples/own_network.py

Copy the class and change it. `check_exportable` says before training what a packed
file cannot hold.
"""

import torch
from torch import Tensor, nn

import fedbnn_core as fb


class SmallNet(nn.Module):
    """A float stem, two binary blocks with a residual, a linear head."""

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        # Signs are taken of what the stem yields. In evaluation it sums in float64,
        # so that torch and the packed file agree on every one of them.
        self.stem = fb.StemConv2d(channels, width, 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        # A binary layer takes the sign of its input itself. Tell it that a batch norm
        # follows: its gradient is then a little cheaper and still exact.
        self.conv1 = fb.BinaryConv2d(width, width, 3, padding=1, norm_follows=True)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = fb.BinaryConv2d(width, 2 * width, 3, padding=1, norm_follows=True)
        self.norm2 = nn.BatchNorm2d(2 * width)
        # The only non-linearity that a packed file has.
        self.clamp = nn.Hardtanh()
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of normalized images (n, c, h, w)."""
        x = self.stem_norm(self.stem(x))
        # The residual stays float: it carries what the signs lose.
        x = self.clamp(x + self.norm1(self.conv1(x)))
        x = nn.functional.max_pool2d(self.norm2(self.conv2(x)), 2)
        return self.head(self.clamp(x).mean((2, 3)))


def main(epochs: int = 5, width: int = 32, output: str = "own.fbnn") -> None:
    """Train, pack, and compare."""
    data = fb.load_dataset("fmnist-mini")
    torch.manual_seed(1)
    net = SmallNet(data.input_shape[0], data.num_classes, width)
    fb.check_exportable(net, data)
    fb.fit(net, data, epochs=epochs, lr=0.1, on_epoch=print)

    size = fb.export_packed(net, data, output)
    labels = fb.PackedModel.load(output).predict(data.x_test)
    print(f"torch:  {fb.evaluate(net, data).accuracy:.2%} of the test images")
    print(f"packed: {(labels == data.y_test).mean():.2%}, {size / 1000:.1f} kB")


if __name__ == "__main__":
    main()
