"""Tandem: an example of an accelerator with two engines in a row, on which batch norm is one instruction.

    memory ──scan, loadx──▶ input buffer ──┐
    memory ──loadw────────▶ weight buffer ─┴─conv─▶ accumulators ──norm──▶ output buffer ──store──▶ memory
    memory ──loadp────────▶ per-channel parameters ────────────────┘

Tandem exists as a simulator only (simulate.py), which executes its instructions bit by bit. A launch computes
convolution, batch norm and ReLU of one group; all else of a network runs on the base. What other accelerators would
change is in these files: numbers.py, instructions.py, machine.py, generate.py.

Numbers
    Memory holds float32. On chip activations and weights are 16-bit integers q times a power of two, q * 2^e: e is that
    of the largest magnitude, 15 bits below it, for activations one for the tensor (found by `scan` at the start of each
    launch), for weights one for each channel of the result. q is rounded to nearest, ties to even, and saturates at
    32767. Sums are integers of 48 bits, in which no convolution of fewer than 2^17 products can overflow: they have no
    rounding and no order. The per-channel engine rounds in float32, IEEE 754, to nearest even, after each operation:

        y = fl(fl(fl(fl(sum) * k[m]) * 2^e) + t[m])        e: of the activations; then max(y, 0) where asked

    with k = scale / sqrt(var + epsilon) * 2^(e of the weights) and t = (b - mean) * scale / sqrt(var + epsilon) + bias,
    computed in float64 and rounded once; layers whose sums times k could overflow are not taken. An activation that is
    no finite number stops the launch.

Instructions, as they are printed; a:b are elements from a to b, without b
    scan x                            finds e of the whole input
    loadw w[m0:m1, c0:c1]             weights: all of the window, channels of the result and of (a group of) the input
    loadp p[m0:m1]                    k and t of these channels
    loadx x[n, c0:c1, h0:h1, w0:w1]   a box of one image; what lies outside of the image is zero
    conv RxC stride HxW dilation HxW groups G first|more
                                      sums for R rows and C columns of all channels in the weight buffer: from zero, or
                                      on top of the accumulators
    norm [relu]                       accumulators to the output buffer: batch norm, and ReLU
    store y[n, m0:m1, h0:h1, w0:w1]   the output buffer to memory
    ; and the rest of a line          a comment
"""
