"""CoCoNet in torch: products and optimizers fused with their collectives, as its programs are rewritten."""
