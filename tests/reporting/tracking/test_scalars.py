from fedbnn_core.reporting.tracking.scalars import round_scalars, summary_scalars


def test_every_figure_has_its_name_and_value(lines):
    assert round_scalars(lines[0]) == {
        "accuracy/val": 0.5,
        "accuracy/val_weights": 0.25,
        "accuracy/best_val": 0.5,
        "loss/val": 1.25,
        "loss/val_weights": 2.5,
        "loss/train": 1.5,
        "schedule/lr": 0.1,
        "schedule/t": 0.25,
        "schedule/k": 4.0,
        # alpha 0.5 and beta 0.75: w keeps 0.5, rot(w) gets 0.375, w_server 0.125.
        "1-alpha/convs.0": 0.5,
        "alpha_beta/convs.0": 0.375,
        "alpha_1-beta/convs.0": 0.125,
        "lambda/convs.0": 0.625,
        "1-alpha/convs.1": 0.5,
        "alpha_beta/convs.1": 0.375,
        "alpha_1-beta/convs.1": 0.125,
        "lambda/convs.1": 0.625,
        "cos_phi/convs.1": 0.875,
        "bytes/up": 1000.0,
        "bytes/down": 900.0,
        "bits/up": 1.25,
        "bits/down": 8.5,
        "seconds/train": 2.0,
        "seconds/aggregate": 0.5,
        "seconds/evaluate": 0.25,
        "clients/accepted": 2.0,
        "clients/rejected": 1.0,
        "clients/missing": 0.0,
    }


def test_a_round_without_evaluation_has_no_accuracy_and_no_nan(lines):
    figures = round_scalars(lines[1])
    assert "accuracy/val" not in figures
    assert "loss/train" not in figures
    assert figures["schedule/k"] == 1.0


def test_summary(summary):
    assert summary_scalars(summary) == {"test/accuracy": 0.625, "test/loss": 1.0}
