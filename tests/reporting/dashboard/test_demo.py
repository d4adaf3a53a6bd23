import base64
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import RunError
from fedbnn_core.packed import PackedModel, reference
from fedbnn_core.packed.graph import Kind, Operation
from fedbnn_core.reporting.dashboard.demo import (
    Demo,
    demo_page,
    layer_bits,
    open_demo,
)
from fedbnn_core.speed.runtimes import packed_bytes
from tests.reporting.dashboard.conftest import serving
from tests.reporting.dashboard.test_server import request
from tests.reporting.report.runs import write_run


@pytest.fixture(scope="module")
def demo(real_run):
    return open_demo(real_run)


def test_the_model_is_exported_if_need_be(demo, real_run):
    assert (real_run / "model.fbnn").is_file()


def test_names_from_outside_stay_text_in_the_page():
    model = PackedModel(packed_bytes("cnn4", (1, 28, 28)))
    evil = "</script><img src=x onerror=alert(1)>"
    model.class_names[0] = model.graph.architecture = evil
    page = demo_page(Demo(model, np.empty((0, 28, 28, 1), np.uint8), []))
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    data = page.partition('id="data"')[2].partition(">")[2].partition("<")[0]
    assert json.loads(data)["class_names"][0] == evil


def test_bits_by_threshold_flip_and_sign():
    sums = np.array([[[-3, 1, 5]], [[2, 2, 2]]], np.int32)
    thresholds = np.array([0, 2, 3], np.int16)
    flips = np.array([False, False, True])
    op = Operation(Kind.BCONV, 3, thresholds=thresholds, flips=flips)
    expected = [[[False, False, False]], [[True, True, True]]]
    assert layer_bits(op, sums).tolist() == expected
    gain, offset = np.float32([1, -1, 2]), np.float32([3, 0, -11])
    op = Operation(Kind.BCONV, 3, gain=gain, offset=offset)
    expected = [[[True, False, False]], [[True, False, False]]]
    assert layer_bits(op, sums).tolist() == expected
    # (sum + bias) * gain + offset, by hand: -1, 3, 1 and 4, 2, -5.
    op.bias = np.float32([-1, -4, 1])
    expected = [[[False, True, True]], [[True, True, False]]]
    assert layer_bits(op, sums).tolist() == expected


def test_bits_of_convnext_are_those_that_its_next_layer_reads():
    """Its first binary convolution has a bias; the reference runs the whole network."""
    model = PackedModel(packed_bytes("convnext-tiny", (3, 32, 32)))
    operations = model.graph.operations
    first = next(i for i, op in enumerate(operations) if op.kind is Kind.BCONV)
    bias = np.linspace(-9, 9, operations[first].out_channels, dtype=np.float32)
    operations[first].bias = bias  # an untrained network's is all zero
    image = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
    normalized = reference.normalize(model.graph, image)
    step = next(s for s in reference._execute(model.graph, normalized) if s[0] == first)
    _, sums, value = step
    np.testing.assert_array_equal(
        layer_bits(operations[first], sums[0].astype(np.int32)), value[0] >= 0
    )


def test_bits_are_those_of_a_convolution_done_by_hand(demo):
    """Sum sign * sign over the window of one dot, pads being +1, and compare."""
    sample = demo.samples(3)[0]
    pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8)
    answer = demo.classify(pixels.tobytes())
    graph = demo.model.graph
    op = next(op for op in graph.operations if op.kind is Kind.BCONV)
    scale, shift = float(graph.pixel_scale[0]), float(graph.pixel_shift[0])
    seen = np.ones((30, 30))
    seen[1:29, 1:29] = np.where(pixels.reshape(28, 28) * scale + shift >= 0, 1, -1)
    weights = np.unpackbits(op.bits, bitorder="little")[: op.out_channels * 9]
    weights = 2.0 * weights.reshape(-1, 3, 3) - 1
    raw = np.frombuffer(base64.b64decode(answer["bits"]["data"]), np.uint8)
    bits = np.unpackbits(raw, bitorder="little").reshape(op.out_channels, 28, 28)
    for channel, row, column in ((0, 0, 0), (5, 13, 9), (17, 27, 27), (3, 1, 20)):
        total = (seen[row : row + 3, column : column + 3] * weights[channel]).sum()
        expected = (total >= op.thresholds[channel]) != op.flips[channel]
        assert bits[channel, row, column] == expected
    raw = np.frombuffer(base64.b64decode(answer["input_bits"]["data"]), np.uint8)
    inputs = np.unpackbits(raw, bitorder="little").reshape(28, 28)
    np.testing.assert_array_equal(inputs, seen[1:29, 1:29] > 0)


def test_answers_are_those_of_the_model(demo, real_run):
    model = PackedModel.load(real_run / "model.fbnn")
    for sample in demo.samples(1)[:5]:
        pixels = base64.b64decode(sample["pixels"])
        answer = demo.classify(pixels)
        image = np.frombuffer(pixels, np.uint8).reshape(1, 28, 28)
        expected = model.class_names[int(model.predict(image)[0])]
        assert answer["classes"][0]["name"] == expected
        assert sum(c["probability"] for c in answer["classes"]) == pytest.approx(1)
        assert answer["latency_ms"] > 0


def test_images_of_the_wrong_size_are_refused(demo, real_run):
    with serving([real_run], demo=demo) as address:

        def classify(size):
            body = bytes(size)
            return request(address, "/api/demo/classify", method="POST", body=body)

        assert classify(784)[0] == 200
        assert classify(783)[0] == 400
        assert classify(785)[0] == 413
        assert classify(0)[0] == 400


def test_a_run_without_a_model_cannot_be_tried(tmp_path):
    with pytest.raises(RunError, match="no model to try"):
        open_demo(write_run(tmp_path / "run", rounds=2))


def test_the_page_says_what_fedbnn_predict_says(browser, demo, real_run, tmp_path):
    with serving([real_run], demo=demo) as address:
        browser.open(f"{address}/demo")
        # The first image is shown at once.
        browser.wait("return document.querySelector('#answer').dataset.turn == 1")
        for number, sample in enumerate(demo.samples(0)[:4]):
            browser.run(
                "document.querySelectorAll('#samples button')[arguments[0]].click()",
                number,
            )
            browser.wait(
                "return document.querySelector('#answer').dataset.turn == arguments[0]",
                number + 2,
            )
            shown = browser.run("return document.querySelector('#answer').innerText")
            pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8)
            file = tmp_path / f"{number}.png"
            Image.fromarray(pixels.reshape(28, 28)).save(file)
            model = str(real_run / "model.fbnn")
            result = CliRunner().invoke(app, ["predict", model, str(file), "--json"])
            (said,) = json.loads(result.stdout)
            assert shown == said["classes"][0]["class"]
            truth = browser.run("return document.querySelector('#truth').innerText")
            assert truth.startswith("Right" if shown == sample["label"] else "Wrong")
            share = browser.run(
                "return document.querySelector('#classes .num').innerText"
            )
            probability = said["classes"][0]["probability"]
            assert share == f"{100 * probability:.1f} %"
        # 64 channels and the bits of the image itself.
        operation = next(
            op for op in demo.model.graph.operations if op.kind is Kind.BCONV
        )
        maps = browser.run("return document.querySelectorAll('#maps canvas').length")
        assert maps == operation.out_channels + 1
        assert " ms for one image" in browser.run("return document.body.innerText")
        assert browser.complaints() == []


def test_a_drawing_is_classified(browser, demo, real_run):
    from selenium.webdriver.common.action_chains import ActionChains

    with serving([real_run], demo=demo) as address:
        browser.open(f"{address}/demo")
        browser.wait("return document.querySelector('#answer').dataset.turn == 1")
        browser.run("document.getElementById('clear').click()")
        pad = browser.driver.find_element("id", "pad")
        ActionChains(browser.driver).move_to_element(
            pad
        ).click_and_hold().move_by_offset(60, 40).release().perform()
        browser.wait("return document.querySelectorAll('#classes li').length == 5")
        assert browser.complaints() == []


def test_swapping_black_and_white_swaps_the_picture_shown(browser, demo, real_run):
    shade = (
        "const pad = document.getElementById('pad'), {data} = pad.getContext('2d')"
        ".getImageData(0, 0, pad.width, pad.height); let sum = 0;"
        "for (let i = 0; i < data.length; i += 4) sum += data[i];"
        "return sum / (data.length / 4)"
    )
    with serving([real_run], demo=demo) as address:
        browser.open(f"{address}/demo")
        browser.wait("return document.querySelector('#answer').dataset.turn == 1")
        before = browser.run(shade)
        browser.run("document.getElementById('invert').click()")
        browser.wait("return document.querySelector('#answer').dataset.turn == 2")
        assert browser.run(shade) == pytest.approx(255 - before, abs=0.5)
        browser.run("document.getElementById('invert').click()")
        browser.wait("return document.querySelector('#answer').dataset.turn == 3")
        assert browser.run(shade) == pytest.approx(before, abs=0.5)
        assert browser.complaints() == []
