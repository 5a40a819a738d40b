"""How blocks of products and convolutions are multiplied: shapes, copies, candidates, and what was timed of them."""
