"""What several ops share: bases of families, formulas in te and NumPy, and the arithmetic of folding. No op is here."""
