"""Passes over graphs: one file each; the pipeline is the list in passes.pipeline."""
