"""How the next token is chosen from the target's logits: parameters, pipeline, noise and the two rules."""
