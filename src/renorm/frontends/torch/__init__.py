"""The graphs that PyTorch makes of programs: read as they are, with norms, attention and convolutions whole.

program     torch.export's ExportedProgram, .pt2 files
reader      a torch.fx.Graph of ATen calls
overloads   what each call means
"""

from renorm.frontends.torch.program import exported, read

__all__ = ["exported", "read"]
