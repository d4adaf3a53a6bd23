"""`fedbnn info`: what is in a packed model."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbnn_core.cli.options import AsJson, PackedFile

__all__ = ["info"]


def info(
    model: PackedFile,
    as_json: AsJson = False,
) -> None:
    """Show the layers, sizes and bits of a packed model."""
    from fedbnn_core.packed.decode import decode, read_file
    from fedbnn_core.packed.summary import summarize

    data = read_file(model)
    summary = summarize(decode(data), data)
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=summary)
        return
    overview = Table(show_header=False)
    overview.add_column(style="bold")
    overview.add_column(overflow="fold")
    for key, value in (
        ("Architecture", escape(summary["architecture"])),
        ("Input", "{1} x {2} pixels, channels: {0}".format(*summary["input_shape"])),
        ("Mean", ", ".join(f"{m:.4f}" for m in summary["mean"])),
        ("Deviation", ", ".join(f"{s:.4f}" for s in summary["std"])),
        ("Classes", escape(", ".join(summary["class_names"]))),
        ("Binary weights", f"{summary['binary_weights']:,} (1 bit each)"),
        ("Other numbers", f"{summary['other_numbers']:,}"),
        (
            "Multiplications",
            f"{summary['binary_macs']:,} binary, {summary['float_macs']:,} float",
        ),
        ("File", f"{summary['file_bytes']:,} bytes"),
        ("SHA-256", summary["sha256"]),
    ):
        overview.add_row(key, value)
    console.print(overview)
    table = Table("#", "Operation", "Output", "Kernel", "Result", pad_edge=False)
    for title in ("Binary weights", "Other numbers", "Bytes"):
        table.add_column(title, justify="right")
    for number, layer in enumerate(summary["layers"]):
        table.add_row(
            str(number),
            layer["operation"],
            " x ".join(map(str, layer["output"])),
            layer["kernel"],
            layer["result"],
            f"{layer['binary_weights']:,}",
            f"{layer['other_numbers']:,}",
            f"{layer['bytes']:,}",
        )
    console.print(table)
