"""A federation in this process: what it returns, and the same bits as by hand."""

import dataclasses

import pytest

from fedbnn_core.data import load_dataset
from fedbnn_core.errors import ConfigError
from fedbnn_core.packed import PackedModel
from fedbnn_core.server.local import LocalFederation
from fedbnn_core.server.opening import open_run, stored_config
from tests.tiny_run import TinyFederation, tiny_config, write_data

SETTINGS = {
    "model_width": 2,
    "clients_per_round": 3,
    "local_epochs": 1,
    "batch_size": 8,
    "device": "cpu",
    "client_threads": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "d.npz", train=64, test=40)


def federation(data, **settings):
    return LocalFederation(
        clients=8,
        rounds=3,
        dataset=data,
        model="resnet10",
        **(SETTINGS | settings),
    )


def test_without_a_folder_the_result_holds_all_and_no_file_is_left(
    data, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    seen = []
    result = federation(f"npz:{data}").run(on_round=seen.append)
    assert [metrics.round for metrics in result.history] == [1, 2, 3]
    assert [metrics.round for metrics in seen] == [1, 2, 3]
    assert result.directory is None
    assert result.summary.directory == ""
    assert not result.summary.stopped
    assert result.best
    # PyTorch has a cache of its own there.
    assert [path.name for path in tmp_path.glob("[!t]*")] == []
    assert not list(tmp_path.rglob("*.safetensors"))
    result.save(tmp_path / "m.fbnn")
    assert len(PackedModel.load(tmp_path / "m.fbnn").graph.class_names) == 3


def test_with_a_folder_it_leaves_a_run_directory_with_the_same_bits(data, tmp_path):
    kept = federation(f"npz:{data}", output_dir=tmp_path / "runs").run()
    given = federation(load_dataset(f"npz:{data}")).run()
    assert kept.summary.final_sha256 == given.summary.final_sha256
    assert kept.summary.best_sha256 == given.summary.best_sha256
    assert kept.packed == given.packed
    assert (kept.directory / "model.fbnn").read_bytes() == kept.packed
    assert (kept.directory / "config.json").is_file()
    assert kept.directory.parent == tmp_path / "runs"


def test_a_stopped_federation_goes_on(data, tmp_path):
    whole = federation(f"npz:{data}").run()
    config = tiny_config(
        data, tmp_path, num_server_rounds=3, client_threads=1, seed=whole_seed(whole)
    )
    half = TinyFederation(config)
    half.round()
    half.run.directory.release()
    resumed = LocalFederation(clients=8, resume=str(half.run.directory.path)).run()
    assert resumed.summary.final_sha256 == whole.summary.final_sha256
    assert resumed.directory == half.run.directory.path


def whole_seed(result):
    assert result.summary.rounds == 3
    return 1


def test_a_float_model_cannot_be_saved_packed(data, tmp_path):
    result = federation(f"npz:{data}", method="fedavg").run()
    assert result.packed is None
    assert set(result.summary.variants) == {"ptb", "ptb_l1"}
    with pytest.raises(ConfigError, match=r"fedavg.*no packed form"):
        result.save(tmp_path / "x.fbnn")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_pre_round": 3}, "clients-pre-round"),
        ({"method": "fedx"}, "fedx"),
        ({"privacy": "local"}, "needs Flower"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        LocalFederation(**settings)


def test_a_run_is_opened_with_one_dataset_and_one_network(data, tmp_path, monkeypatch):
    loads, builds = [], []

    def counted(calls, function):
        def call(*args, **kwargs):
            calls.append(args)
            return function(*args, **kwargs)

        return call

    from fedbnn_core.methods import base
    from fedbnn_core.server import opening

    load, build = opening.load_run_dataset, base.build_model
    monkeypatch.setattr(opening, "load_run_dataset", counted(loads, load))
    monkeypatch.setattr(base, "build_model", counted(builds, build))
    config = stored_config(tiny_config(data, tmp_path))
    open_run(config, 8).directory.release()
    assert len(loads) == 1
    assert len(builds) == 1
    open_run(config, 8, dataset=load(config)).directory.release()
    assert len(loads) == 1
    assert dataclasses.is_dataclass(config)
