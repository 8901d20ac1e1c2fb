"""Passes over graphs, and sets of rules, one file each; which run when is in passes.pipeline.

    rules on models    simplify (reindexing that changes nothing; raising runs it, too), products (forms of matrix
                       products), flattened_products (what was flattened for them), fold (a scale and a shift into
                       constants), padding (into convolutions), dilation
    rules to kernels   unpack (norms as scale and shift), decompose (several results), contractions (einsum),
                       collapse_pixels (one pixel, or rows of pixels), split_variadic (many operands), quantization
                       (integers as numbers in steps), integer_products (of these, as products of floats)
    raising            raise_slice_norms, raise_group_norm, raise_batch_norm, by norm_patterns; raise_attention

Rules of a new kind are a new file with its `RULES`, which pipeline.py names in its list.
"""
