"""HOW ARRAYS TRAVEL: what a sender means into what is sent, and back.

`Codec` is the one interface: `bits.BitCodec` sends a network's state at 16, 8, 4 or
1 bit per weight, `signs.SignCodec` is FedBAT's and `factors.FactorCodec` FedMUD's own
coding. `RunWire` is both directions of a run: simulation, fleet and a federation in
one process all go through it, and so compute the same.
"""
