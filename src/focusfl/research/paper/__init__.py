"""The paper's tables and figures: what they are, computing them, judging them."""
