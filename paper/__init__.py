"""What belongs to the paper and not to the library: its printed formulas and tables, checked against exact numbers.

    python -m paper.audit      every formula and claim of the paper against brute force
    python -m paper.toy        tokenizers of the paper's toy model, with a figure
    python -m paper.theorem    are labels the best tokenizer of a small graph?

Each prints tables, or JSON with --json.
"""
