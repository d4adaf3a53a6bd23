"""One binary layer, the paper's section 3.1: signs, mixing, rotations."""
