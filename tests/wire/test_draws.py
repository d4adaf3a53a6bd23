"""Random numbers of the wire: fixed by their seed, for ever."""

import numpy as np

from fedbnn_core.wire.draws import random_signs, uniform


def test_a_seed_means_the_same_numbers_for_ever():
    """Philox's first words for key 7: if these change, devices no longer agree."""
    words = np.random.Philox(key=7).random_raw(2)
    bits = "".join(f"{byte:08b}" for byte in words.astype("<u8").tobytes())
    assert random_signs(7, 100).tolist() == [1 if b == "1" else -1 for b in bits[:100]]
    halves = [int(words[0]) & 0xFFFFFFFF, int(words[0]) >> 32, int(words[1]) % 2**32]
    assert uniform(7, 3).tolist() == [half / 2**32 for half in halves]


def test_signs_are_even_and_uniforms_are_flat():
    signs, values = random_signs(1, 10**6), uniform(2, 10**6)
    # Five standard deviations.
    assert abs(signs.mean(dtype=np.float64)) < 5e-3
    assert abs(values.mean() - 0.5) < 5 * np.sqrt(1 / 12) * 1e-3
    assert values.min() >= 0
    assert values.max() < 1


def test_other_seeds_draw_other_numbers():
    assert abs(np.mean(random_signs(1, 10**5) * random_signs(2, 10**5))) < 0.02
